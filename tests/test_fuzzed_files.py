"""Every reader of files, given damaged ones: a clear error or a result, at once.

`QUADRIC_FUZZ_SECONDS=600 pytest -m slow tests/test_fuzzed_files.py` looks for ten minutes at each.
"""

from __future__ import annotations

import copy
import gzip
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn

import quadric
from quadric.data.table_files import read_table
from quadric.data.text.scores import SETTINGS
from quadric.encrypted.messages import pack, unpack
from quadric.encrypted.pair import CLIENT, SERVER
from quadric.errors import QuadricError
from quadric.models.weight_files import read_checkpoint
from quadric.runs.groups import group, without_twins
from quadric.runs.reading import read_runs
from quadric.runs.tables import bleu_table, group_table, run_rows, to_json
from quadric.sklearn import QuadraticClassifier, QuadraticRegressor
from quadric.sklearn import load as load_estimator
from quadric.support.provenance import finite
from quadric.support.tensor_files import read_tensors, write_tensors
from quadric.tables.comparison.fit_log import FitLog
from quadric.train import catalog, checkpoints
from tests.encrypted.networks import inputs, perceptron
from tests.runs.made import result

SECONDS = float(os.environ.get("QUADRIC_FUZZ_SECONDS", "20"))
"""For each reader."""
AT_ONCE = 5.0
"""Seconds of processor time that one file may take."""

FOREIGN = (
    None, True, -1, 0, 3, 0.5, 10**30, 10**400, 1e308, float("nan"), float("inf"), "", "x", "../x",
    "=1+1", "\x1b[31m", "\udc80", "y" * 10**5, [], {}, [None], {"": None}, [[1, "a"]],
)  # fmt: skip
"""Values that no reader expects at some place."""


# --- damage ---------------------------------------------------------------------------------------


def damaged_bytes(content: bytes) -> st.SearchStrategy[bytes]:
    """A file with flipped bits, parts cut out, doubled or replaced."""
    place = st.integers(0, max(0, len(content) - 1))
    part = st.sampled_from(
        [b"", b"\0", b"\xff\xfe", b"\n", b"[" * 10**5, b'{"a":' * 1000, b"NaN", b"9" * 5000, b"'"]
    )
    edit = st.one_of(
        st.tuples(st.just("flip"), place, st.integers(0, 7)),
        st.tuples(st.just("cut"), place, st.integers(0, 200)),
        st.tuples(st.just("end"), place, st.just(0)),
        st.tuples(st.just("double"), place, st.integers(0, 200)),
        st.tuples(st.just("put"), place, part | st.binary(max_size=20)),
    )

    def changed(edits: list[tuple[str, int, Any]]) -> bytes:
        now = bytearray(content)
        for kind, at, what in edits:
            if kind == "flip" and at < len(now):
                now[at] ^= 1 << what
            elif kind == "cut":
                del now[at : at + what]
            elif kind == "end":
                del now[at:]
            elif kind == "double":
                now[at:at] = now[at : at + what]
            elif kind == "put":
                now[at:at] = what
        return bytes(now)

    return st.lists(edit, min_size=1, max_size=4).map(changed)


def places(value: Any) -> list[tuple[Any, ...]]:
    """The ways to every part of plain data."""
    pairs: Any = value.items() if isinstance(value, dict) else []
    pairs = enumerate(value) if isinstance(value, list) else pairs
    return [(), *((key, *way) for key, part in pairs for way in places(part))]


def damaged_data(value: Any) -> st.SearchStrategy[Any]:
    """Plain data in which some parts are other values, or are missing."""
    edit = st.tuples(st.sampled_from(places(value)[1:]), st.sampled_from(FOREIGN), st.booleans())

    def changed(edits: list[tuple[tuple[Any, ...], Any, bool]]) -> Any:
        now = copy.deepcopy(value)
        for (*way, last), new, missing in edits:
            try:
                part = now
                for key in way:
                    part = part[key]
                if missing:
                    del part[last]
                else:
                    part[last] = copy.deepcopy(new)
            except (KeyError, IndexError, TypeError):
                pass  # an earlier edit took it away
        return now

    return st.lists(edit, min_size=1, max_size=3).map(changed)


def in_header(key: str) -> Callable[[Path], st.SearchStrategy[bytes]]:
    """Damage to the JSON in a file of tensors, whose checksum is right."""

    def made(file: Path) -> st.SearchStrategy[bytes]:
        tensors, metadata = read_tensors(file)
        other = file.with_suffix(".other")

        def written(header: Any) -> bytes:
            write_tensors(other, tensors, metadata | {key: json.dumps(header)})
            return other.read_bytes()

        return damaged_data(json.loads(metadata[key])).map(written)

    return made


def in_message(file: Path) -> st.SearchStrategy[bytes]:
    """Damage to the facts of a file for predictions under encryption, whose checksum is right."""
    kind = {"c": CLIENT, "s": SERVER}[file.name]
    model, facts, parts = unpack(file.read_bytes(), kind)
    return damaged_data(facts).map(lambda other: pack(kind, model, finite(other), parts))


def of_bytes(file: Path) -> st.SearchStrategy[bytes]:
    """Damage to the bytes of a file."""
    return damaged_bytes(file.read_bytes())


def of_json(file: Path) -> st.SearchStrategy[bytes]:
    """Damage to what the JSON of a file says."""
    return damaged_data(json.loads(file.read_text())).map(lambda data: json.dumps(data).encode())


def of_yaml(file: Path) -> st.SearchStrategy[bytes]:
    """Damage to what the YAML of a file says."""
    data = yaml.safe_load(file.read_text())
    return damaged_data(data).map(lambda data: yaml.safe_dump(data).encode())


# --- readers --------------------------------------------------------------------------------------


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 2))


def write_network(file: Path) -> None:
    model = network()
    quadric.convert_(model, rank=3)
    quadric.save(model, file)


def write_estimator(kind: Any) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        rows = np.random.default_rng(0).normal(size=(60, 3))
        targets = rows[:, 0] > 0 if kind is QuadraticClassifier else rows[:, 0]
        kind((4,), max_iter=3, tol=1.0, random_state=0).fit(rows, targets).save(file)

    return write


def predict(file: Path) -> None:
    load_estimator(file).predict(np.zeros((2, 3)))


def write_table(file: Path) -> None:
    text = "a;b,c;day\n" + "".join(f"{i};{i},5;2020-01-{i % 28 + 1:02d}\n" for i in range(60))
    file.write_bytes(gzip.compress(text.encode()) if file.suffix == ".gz" else text.encode())


def write_result(file: Path) -> None:
    file.write_text(json.dumps(result(0.5)))


def write_translation(file: Path) -> None:
    bleu = dict.fromkeys(SETTINGS, 30.0)
    sizes = {"params_without_embeddings": 900}
    file.write_text(json.dumps({**result(None), "test_bleu": 30.0, "bleu": bleu, **sizes}))


def tabulate(file: Path) -> None:
    runs, _ = read_runs([file])
    runs, _ = without_twins(runs)
    group_table(group(runs))
    run_rows(runs)
    bleu_table(group(runs))
    to_json(group(runs))
    for run in runs:
        run.curve("test", "score")


def write_fits(file: Path) -> None:
    log = FitLog({"a": 1}, "table", file.parent)
    log.add(model="linear", fold=0, seed=0, status="ok", error=0.5, widths=[3])


def read_fits(file: Path) -> None:
    FitLog({"a": 1}, "table", file.parent).frame()


def write_encrypted(end: str) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        pytest.importorskip("tenseal")
        client, server = quadric.encrypted.compile(perceptron(), inputs(), tolerance=0.1)
        {"client": client, "server": server}[end].save(file)

    return write


def write_recipe(file: Path) -> None:
    file.write_text(
        "base: law-lorentz\nquick: {epochs: 2}\nlr: 1e-2\nhidden: [8, 8]\ntitle: mine\n"
    )


def resolve(file: Path) -> None:
    for quick in (False, True):
        recipe = catalog.load(str(file), quick).resolved()
        recipe.directory_name(recipe)


READERS: dict[str, tuple[str, Callable[[Path], Any], Any, Callable[[Path], Any]]] = {
    "network": ("m.safetensors", write_network, of_bytes, lambda f: quadric.load_(network(), f)),
    "network's header": (
        "m.safetensors",
        write_network,
        in_header("quadric"),
        lambda f: quadric.load_(network(), f),
    ),
    "checkpoint": (
        "m.pth",
        lambda f: torch.save(network().state_dict(), f),
        of_bytes,
        read_checkpoint,
    ),
    "run's checkpoint": (
        "last.ckpt",
        lambda f: checkpoints.write({"epoch": 3}, f),
        of_bytes,
        checkpoints.read,
    ),
    "regressor": ("m.quadric", write_estimator(QuadraticRegressor), of_bytes, predict),
    "regressor's header": (
        "m.quadric",
        write_estimator(QuadraticRegressor),
        in_header("quadric_estimator"),
        predict,
    ),
    "classifier's header": (
        "m.quadric",
        write_estimator(QuadraticClassifier),
        in_header("quadric_estimator"),
        predict,
    ),
    "table": ("t.csv", write_table, of_bytes, read_table),
    "packed table": ("t.csv.gz", write_table, of_bytes, read_table),
    "result": ("result.json", write_result, of_json, tabulate),
    "result's bytes": ("result.json", write_result, of_bytes, tabulate),
    "translation": ("result.json", write_translation, of_json, tabulate),
    "fits": ("fits.jsonl", write_fits, of_bytes, read_fits),
    "fit": ("fits.jsonl", write_fits, of_json, read_fits),
    "settings": ("settings.json", write_fits, of_bytes, read_fits),
    "client": ("c", write_encrypted("client"), of_bytes, quadric.encrypted.load_client),
    "client's facts": ("c", write_encrypted("client"), in_message, quadric.encrypted.load_client),
    "server": ("s", write_encrypted("server"), of_bytes, quadric.encrypted.load_server),
    "server's facts": ("s", write_encrypted("server"), in_message, quadric.encrypted.load_server),
    "recipe": ("r.yaml", write_recipe, of_yaml, resolve),
    "recipe's bytes": ("r.yaml", write_recipe, of_bytes, resolve),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_file_is_one_clear_error(reader: str, tmp_path: Path) -> None:
    name, write, damage, read = READERS[reader]
    file = tmp_path / name
    write(file)
    read(file)

    @settings(
        max_examples=50,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(damage(file))
    def trial(content: bytes) -> None:
        file.write_bytes(content)
        start = time.process_time()
        try:
            read(file)
        except QuadricError:
            pass
        assert time.process_time() - start < AT_ONCE

    end = time.monotonic() + SECONDS
    for number in itertools.count():
        if time.monotonic() > end:
            break
        hypothesis.seed(number)(trial)()

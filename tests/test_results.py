"""The published results: valid, traceable, small, and summed up as they say."""

from __future__ import annotations

import copy
import csv
import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.tools.loading import ROOT, load_tool

RESULTS = ROOT / "results"
FILES = sorted(path for path in RESULTS.rglob("*.json") if path.name != "schema.json")
SCHEMA = json.loads((RESULTS / "schema.json").read_text(encoding="utf-8"))
CHECK = jsonschema.Draft202012Validator(SCHEMA)
RUN: dict[str, Any] = {
    "recipe": "digits", "dataset": "digits", "model": "digits_cnn", "neuron": "eigen", "rank": 9,
    "seed": 0, "status": "ok", "params": 1, "macs": 1, "test_loss": 0.1, "test_accuracy": 0.9,
    "epochs": [{"epoch": 1, "seconds": 1.0}], "seconds": 1.0, "settings": {},
    "quadratic_share": {"conv1": 0.1},
    "versions": {"torch": "2"}, "machine": {"cpu": "x", "cores": 2, "gpus": []},
    "command": "quadric train digits --neuron eigen",
}  # fmt: skip


def test_every_file_is_valid_and_names_its_command() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert len(FILES) > 40
    faults = {}
    for path in FILES:
        data = json.loads(path.read_text(encoding="utf-8"))
        faults |= {str(path): fault.message for fault in CHECK.iter_errors(data)}
    assert faults == {}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"command": "quadric train /home/me/digits.yaml"}, "does not match"),
        ({"command": "quadric train digits --data-dir=/data"}, "does not match"),
        ({"command": ""}, "does not match"),
        ({"test_accuracy": 91.0}, "greater than the maximum"),
        ({"status": "fine"}, "is not one of"),
        ({"epochs": [{"epoch": i} for i in range(21)]}, "too long"),
        ({"quadratic_share": {"conv1": 1.5}}, "greater than the maximum"),
        ({"seed": None}, "is not of type 'integer'"),
    ],
)
def test_what_the_schema_refuses(change: dict[str, Any], fault: str | None) -> None:
    found = [error.message for error in CHECK.iter_errors({**copy.deepcopy(RUN), **change})]
    assert found == [] if fault is None else fault in " ".join(found)
    without = {key: value for key, value in RUN.items() if key != "command"}
    assert not CHECK.is_valid(without)


def test_no_file_holds_a_path_of_a_machine() -> None:
    for path in [*FILES, *RESULTS.rglob("*.csv")]:
        text = path.read_text(encoding="utf-8")
        for start in ("/home/", "/root", "/tmp", "/work", "/Users/", "C:\\\\"):
            assert start not in text, f"{path} holds {start}"


def test_summaries_are_those_of_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What `make results` writes is what is there."""
    load_tool("evidence_runs", monkeypatch)
    tool = load_tool("results_summary", monkeypatch)
    copied = {}
    for part in ("laws", "tables", "polynomial"):
        evidence = load_tool(f"evidence_{part}", monkeypatch)
        folder = tmp_path / part
        folder.symlink_to(RESULTS / part)
        written: dict[str, list[Any]] = {}
        monkeypatch.setattr(
            evidence, "write_csv", lambda path, rows, found=written: found.update({path.name: rows})
        )
        evidence.summarize(folder)
        copied[part] = written
    for part, written in copied.items():
        for name, rows in written.items():
            if rows:  # tuning runs may be kept as rows alone
                tool.write_csv(tmp_path / name, rows)
                ours, kept = ((f / name).read_bytes() for f in (tmp_path, RESULTS / part))
                assert ours == kept, f"results/{part}/{name} is out of date: run make results"
    tool.write_csv(tmp_path / "all.csv", tool.summary_rows(RESULTS))
    kept = (RESULTS / "summary.csv").read_bytes()
    assert (tmp_path / "all.csv").read_bytes() == kept, "run make results"
    with (RESULTS / "summary.csv").open(newline="", encoding="utf-8") as file:
        assert all(row["command"] for row in csv.DictReader(file))


def test_a_summary_of_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    load_tool("evidence_runs", monkeypatch)
    tool = load_tool("results_summary", monkeypatch)
    folder = tmp_path / "images"
    folder.mkdir()
    scores = {
        "linear": (0.80, 0.82, 0.81),
        "linear-wide": (0.81, 0.83),
        "eigen": (0.83, 0.84, None),
    }
    for arm, found in scores.items():
        for seed, score in enumerate(found):
            run = {**RUN, "seed": seed, "test_accuracy": score, "neuron": arm.partition("-")[0]}
            (folder / f"r8-{arm}-s{seed}.json").write_text(json.dumps(run), encoding="utf-8")
    rows = list(tool.of_runs(folder))
    assert [(row["experiment"], row["arm"]) for row in rows] == [
        ("images/r8", "linear"), ("images/r8", "eigen"), ("images/r8", "linear-wide"),
    ]  # fmt: skip
    eigen = rows[1]
    assert eigen["mean"] == pytest.approx(0.835)
    assert (eigen["seeds"], eigen["diverged"]) == (3, 1)
    assert eigen["difference"] == pytest.approx(2.5)  # points, by the seeds that both have
    assert eigen["low"] < 2.5 < eigen["high"]
    assert eigen["is_clear"] is False  # two pairs are not enough
    for text, words in ((json.dumps(RUN), "must be named EXPERIMENT-ARM-sSEED"), ("{", "not JSON")):
        (folder / "stray.json").write_text(text, encoding="utf-8")
        tool.run_groups.cache_clear()
        with pytest.raises(ValueError, match=words):
            list(tool.of_runs(folder))


def test_the_repository_is_small() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git clone")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert sum(path.stat().st_size for path in files if path.is_file()) < 30e6

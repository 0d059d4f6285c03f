"""Translation runs, from text files to translated lines."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import quadric.train
from quadric.runs.groups import group
from quadric.runs.reading import read_runs
from quadric.runs.tables import bleu_table, facts, to_json
from quadric.train import catalog, checkpoints, translation
from quadric.train.data import load_data
from quadric.train.evaluation import evaluate
from quadric.train.network import build_network, load_run
from quadric.train.runner import PlannedRun, plan_run, train
from quadric.train.step import TrainingModule
from tests.data.text.small import corpus, pair, write
from tests.train.test_states import Killed, KillingScreen

SMALL = {"depth": 1, "model_width": 16, "feedforward_width": 16, "heads": 2}
OPTIONS: dict[str, Any] = {
    "model_options": {**SMALL, "dropout": 0.1},
    "dataset_options": {"vocabulary": 320},
    "dataset": "text",
    "batch_size": 600,
    "epochs": 2,
    "average": 2,
    "warmup_steps": 20,
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUADRIC_CACHE", str(tmp_path / "cache"))


def run_of(tmp_path: Path, name: str = "run", **options: Any) -> PlannedRun:
    if not (tmp_path / "data").is_dir():
        corpus(tmp_path / "data")
    chosen = OPTIONS | {"data_dir": str(tmp_path / "data")} | options
    return plan_run("multi30k-transformer", chosen, run_dir=tmp_path / name)


def trained(tmp_path: Path, name: str = "run", **options: Any) -> dict[str, Any]:
    result = train(run_of(tmp_path, name, **options))
    assert result is not None
    return result


def test_a_run_has_everything_in_its_result(tmp_path: Path) -> None:
    result = trained(tmp_path, neuron="eigen", rank=3)
    assert list(result["bleu"]) == ["13a_cased", "13a_uncased", "intl_cased", "intl_uncased"]
    assert result["test_bleu"] == result["bleu"]["13a_cased"]
    assert result["signatures"]["13a_cased"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    assert math.exp(result["test_loss"]) == pytest.approx(result["test_perplexity"])
    embedding = 16 * 320
    assert result["params"] - result["params_without_embeddings"] == embedding
    assert result["macs_per_token"] == result["macs"] // 32
    assert len(result["quadratic_share"]) == 3 * 4
    first, second = result["epochs"]
    assert second["val_loss"] < first["val_loss"]
    assert first["tokens_per_second"] > 0
    again = evaluate(tmp_path / "run")
    for key in ("bleu", "chrf", "params_without_embeddings"):
        assert again[key] == result[key]
    assert again["test_loss"] == pytest.approx(result["test_loss"], rel=1e-5)


def test_a_task_of_learnable_pairs_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"model_options": {**SMALL, "model_width": 64, "dropout": 0.0}, "epochs": 60}
    result = trained(tmp_path, **options, label_smoothing=0.0, lr=0.01, average=1)
    assert result["bleu"]["13a_cased"] > 90
    translator = quadric.train.translator(tmp_path / "run")
    assert translator.translate([pair(400)[0], ""]) == [pair(400)[1], ""]
    # What is beyond the limit is not seen.
    short, whole = translator.translate(["I count one two", "I count one two three four five."])
    assert short != whole
    (row,) = translator.tokenizer.encode(["I count one two"])
    monkeypatch.setattr(translation, "LONGEST", len(row))
    with pytest.warns(UserWarning, match="line 1 has .* pieces, more than"):
        (cut,) = translator.translate(["I count one two three four five."])
    assert cut == short


def test_the_loss_is_torchs_cross_entropy(tmp_path: Path) -> None:
    data = load_data(run_of(tmp_path).recipe)
    task = data.task
    logits = torch.randn(2, 3, 9, dtype=torch.float64)
    targets = torch.tensor([[4, 8, 2], [5, 2, 0]])
    outputs = task.outputs(lambda source, target: logits, (None, None))
    flat, known = logits.flatten(0, 1), targets.flatten()
    cross_entropy = torch.nn.functional.cross_entropy
    smooth = cross_entropy(flat, known, ignore_index=0, label_smoothing=0.1)
    torch.testing.assert_close(task.loss(outputs, targets), smooth)
    metrics = task.metrics(task.sums(outputs, targets))
    assert metrics["loss"] == pytest.approx(float(cross_entropy(flat, known, ignore_index=0)))
    assert task.sums(outputs, targets)[0] == 5


def test_steps_have_the_tokens_of_the_recipe_however_they_are_shared_out(tmp_path: Path) -> None:
    steps = []
    for devices, most in ((1, 4096), (2, 4096), (1, 150), (2, 75)):
        data = load_data(run_of(tmp_path, devices=devices, pass_tokens=most).recipe)
        batches = data.train(0, devices)
        sizes = [targets.numel() for _, targets in batches]
        assert max(sizes) <= min(most, 600 // devices)
        assert len(batches) % data.accumulate == 0
        steps.append(len(batches) / data.accumulate)
    assert max(steps) <= 1.3 * min(steps)
    data = load_data(run_of(tmp_path, epoch_steps=3, pass_tokens=300).recipe)
    assert (len(data.train(0, 1)), data.accumulate) == (6, 2)


def test_a_schedule_counts_steps_and_not_their_passes(tmp_path: Path) -> None:
    options = {"schedule": "cosine", "lr": 1e-3, "epochs": 2, "epoch_steps": 3, "average": 1}
    run = run_of(tmp_path, **options, pass_tokens=300)
    assert load_data(run.recipe).accumulate == 2
    train(run)
    epochs = json.loads(run.directory.result_file.read_text())["epochs"]
    # An epoch's first step: half of the way down after 3 of 6 steps, a quarter of it of 12.
    assert [epoch["lr"] for epoch in epochs] == pytest.approx([1e-3, 5e-4])


def test_a_step_of_several_passes_takes_the_mean_over_its_tokens(tmp_path: Path) -> None:
    options = {"model_options": SMALL | {"dropout": 0.0}, "label_smoothing": 0.0, "average": 1}
    options |= {"optimizer": "sgd", "momentum": 0.0, "lr": 1.0, "warmup_steps": 1}
    run = run_of(tmp_path, **options, epochs=1, epoch_steps=1, pass_tokens=100)
    data = load_data(run.recipe)
    network = build_network(run.recipe, data)
    passes = list(data.train(0, 1))
    counts = {int((targets != 0).sum()) for _, targets in passes}
    assert (len(passes), len(counts) > 1) == (6, True)
    outputs = [network(*inputs).flatten(0, 1) for inputs, _ in passes]
    known = torch.cat([targets.flatten() for _, targets in passes])
    torch.nn.functional.cross_entropy(torch.cat(outputs), known, ignore_index=0).backward()
    train(run)
    found = load_file(run.directory.weights_file)
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(found[name], parameter.detach() - parameter.grad)


def test_the_moving_average_moves_once_per_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = []
    end = TrainingModule.on_train_batch_end

    def watched(self: TrainingModule, *args: Any) -> None:
        before = next(self.evaluated.parameters()).clone()
        end(self, *args)
        moved.append(not torch.equal(before, next(self.evaluated.parameters())))

    monkeypatch.setattr(TrainingModule, "on_train_batch_end", watched)
    trained(tmp_path, epoch_steps=3, pass_tokens=100, ema=0.9, epochs=1)
    assert (len(moved), sum(moved)) == (18, 3)


def test_the_last_weights_are_averaged(tmp_path: Path) -> None:
    trained(tmp_path, epochs=4, average=2)
    last, before = (
        checkpoints.read(tmp_path / "run" / "checkpoints" / name)["state_dict"]
        for name in ("last.ckpt", "previous.ckpt")
    )
    mean = load_file(tmp_path / "run" / "weights.safetensors")
    for name, tensor in mean.items():
        both = (last[f"network.{name}"] + before[f"network.{name}"]) / 2
        torch.testing.assert_close(tensor, both)
    assert not torch.equal(last["network.embedding.weight"], before["network.embedding.weight"])


def curve(result: dict[str, Any]) -> list[Any]:
    clock = ("seconds", "tokens_per_second")
    return [{k: v for k, v in record.items() if k not in clock} for record in result["epochs"]]


def test_a_run_that_is_killed_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole = trained(tmp_path, "whole", epochs=3)
    run = run_of(tmp_path, epochs=3)
    with pytest.raises(Killed):
        train(run, screen=KillingScreen(3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is not finished"):
        quadric.train.translator(tmp_path / "run")
    again = train(run, resume=True)
    assert again is not None
    assert curve(again) == curve(whole)
    assert again["bleu"] == whole["bleu"]


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    result = trained(tmp_path, devices=2)
    assert result["status"] == "ok"
    assert result["epochs"][1]["val_loss"] < result["epochs"][0]["val_loss"]
    alone = trained(tmp_path, "alone")
    # The same tokens a step, in other batches.
    assert result["test_loss"] == pytest.approx(alone["test_loss"], rel=0.1)


def test_a_run_translates_wherever_it_is(tmp_path: Path) -> None:
    trained(tmp_path)
    lines = [pair(i)[0] for i in range(500, 520)]
    before = quadric.train.translator(tmp_path / "run").translate(lines)
    shutil.copytree(tmp_path / "run", tmp_path / "elsewhere" / "run")
    told: list[int] = []
    evaluate(tmp_path / "run", progress=lambda *_, total: told.append(total))
    assert told[-1] == len(told) > told[0]  # batches of the loss, then those of translations
    for folder in ("run", "data", "cache"):
        shutil.rmtree(tmp_path / folder)
    moved = tmp_path / "elsewhere" / "run"
    assert quadric.train.translator(moved).translate(lines) == before
    write(tmp_path / "new", "test", [pair(i) for i in range(9)])
    test = tmp_path / "new" / "test.en", tmp_path / "new" / "test.de"
    assert evaluate(moved, test=test)["bleu"].keys() == {
        *("13a_cased", "13a_uncased", "intl_cased", "intl_uncased")
    }
    with pytest.raises(ValueError, match=r"must be in .*, and are not: name two files with"):
        evaluate(moved)
    (moved / "tokenizer.model").unlink()
    with pytest.raises(ValueError, match=r"missing file .*tokenizer\.model: a translation run"):
        load_run(moved)


def test_without_test_files_there_is_no_bleu(tmp_path: Path) -> None:
    data = corpus(tmp_path / "data")
    for end in ("en", "de"):
        (data / f"test.{end}").unlink()
    result = trained(tmp_path, epochs=1, average=1)
    assert result["bleu"] is None
    # Those of the validation files would be no test.
    assert result["test_loss"] is None
    assert result["test_perplexity"] is None
    assert result["epochs"][0]["val_loss"] > 0
    shown = dict(facts(result))
    assert shown["test"] == "none, as there are no test files"
    assert "test loss" not in shown


def test_a_run_does_not_go_on_with_other_text(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    load_data(run_of(tmp_path).recipe).keep(folder)
    before = {file: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    assert {file.name for file in before} == {"tokenizer.model", "text.sha256"}
    write(tmp_path / "data", "train", [pair(i) for i in range(300, 500)])
    changed = load_data(run_of(tmp_path).recipe)
    (folder / "checkpoints" / "last.ckpt").touch()
    with pytest.raises(ValueError, match=r"the text must be the one that the run in .* began with"):
        changed.keep(folder)
    assert {file: file.read_bytes() for file in before} == before
    (folder / "checkpoints" / "last.ckpt").unlink()  # nothing was trained yet
    changed.keep(folder)
    assert {file: file.read_bytes() for file in before} != before


def test_translations_do_not_depend_on_their_neighbors(tmp_path: Path) -> None:
    trained(tmp_path)
    translator = quadric.train.translator(tmp_path / "run")
    lines = [pair(i)[0] for i in range(30)]
    together = translator.translate(lines)
    assert together == [translator.translate([line])[0] for line in lines]
    assert [x for some in translator.stream(lines, 7) for x in some] == together


def test_recipes_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs a network for translation, got model 'mlp'"):
        trained(tmp_path, model="mlp", model_options={})
    with pytest.raises(ValueError, match=r"validation is a share of other data, got 0\.1"):
        trained(tmp_path, average=None, validation=0.1)
    with pytest.raises(ValueError, match="does not work with average"):
        run_of(tmp_path, strategy="fsdp")
    digits = train(plan_run("digits", {"epochs": 1, "limit": 20}, run_dir=tmp_path / "digits"))
    assert digits is not None
    with pytest.raises(ValueError, match="must be a translation run, got one of the data set"):
        quadric.train.translator(tmp_path / "digits")
    with pytest.raises(ValueError, match="test files are for translation"):
        evaluate(tmp_path / "digits", test=(tmp_path / "a", tmp_path / "b"))


def test_results_have_the_layout_of_table_2(tmp_path: Path) -> None:
    base = {"recipe": "r", "status": "ok", "rank": None, "test_loss": 1.0, "params": 3}
    settings = {"name": "r", "dataset": "text"}

    def result(neuron: str, seed: int, size: int, rate: float | None, bleu: float) -> None:
        scores = {n: bleu + i for i, n in enumerate(("13a_cased", "13a_uncased"))}
        scores |= {n: bleu + 2 + i for i, n in enumerate(("intl_cased", "intl_uncased"))}
        own = settings | {"neuron": neuron, "seed": seed, "quadratic_lr": rate}
        values = base | {"neuron": neuron, "seed": seed, "settings": own, "bleu": scores}
        values |= {"test_bleu": bleu, "params_without_embeddings": size}
        (tmp_path / f"{neuron}{rate}{seed}.json").write_text(json.dumps(values))

    result("linear", 0, 15_773_696, None, 25.0)
    result("linear", 1, 15_773_696, None, 26.0)
    for rate in (1e-4, 1e-6):
        result("eigen", 0, 12_567_656, rate, 25.2)
    found, _ = read_runs(tmp_path)
    groups = sorted(group(found), key=lambda each: each.first.label, reverse=True)
    table = bleu_table(groups)
    assert table is not None
    lines = [line.split() for line in table.splitlines()]
    assert lines[0] == "BLEU, tokenization cased linear eigen 0.0001 eigen 1e-06".split()
    assert lines[2] == "13a Yes 25.5 ± 0.7 25.2 25.2".split()
    assert lines[5] == "International No 28.5 ± 0.7 28.2 28.2".split()
    assert lines[6] == "params/M 15.77 12.57 (-20.3 %) 12.57 (-20.3 %)".split()
    assert to_json(groups)["groups"][0]["bleu"]["13a_cased"]["mean"] == 25.5


def test_the_recipes_have_the_settings_of_the_paper() -> None:
    wmt = catalog.load("wmt14-transformer")
    assert wmt.epochs * (wmt.epoch_steps or 0) == 100_000
    assert (wmt.batch_size, wmt.betas, wmt.eps) == (25_000, [0.9, 0.98], 1e-9)
    assert wmt.lr == pytest.approx(512**-0.5 * 4000**-0.5, rel=1e-5)
    assert (wmt.warmup_steps, wmt.label_smoothing, wmt.average) == (4000, 0.1, 5)
    multi30k = catalog.load("multi30k-transformer")
    assert (multi30k.batch_size, multi30k.warmup_steps, multi30k.average) == (4096, 400, 10)


def test_accumulated_gradients_make_one_step(tmp_path: Path) -> None:
    result = trained(tmp_path, epoch_steps=3, pass_tokens=100)
    first, second = result["epochs"]
    # The rate rises by a twentieth of 0.003 with each step, and an epoch has three.
    assert first["lr"] == pytest.approx(0.003 / 20)
    assert second["lr"] == pytest.approx(0.003 * 4 / 20)

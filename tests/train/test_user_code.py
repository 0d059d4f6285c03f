"""Neurons, networks, data sets and losses of a user's own, from real files."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from quadric.errors import InputError
from quadric.layers import neurons, unregister
from quadric.train import evaluate, load, run
from quadric.train.data import SampleRunData, TableRunData, load_data
from quadric.train.directory import RunDirectory
from quadric.train.network import build_network
from quadric.train.runner import plan_run
from tests.command_line import assert_mistake, output
from tests.command_line import quadric as command
from tests.train.small import curve

FILES = Path(__file__).parent.parent / "data_files" / "own_parts"
BASE = {"epochs": 2, "batch_size": 32, "augment": False, "lr": 0.05, "schedule": "constant"}
OWN: dict[str, Any] = BASE | {"model": "my_parts:small_network", "dataset": "my_parts:circle"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the files; what they left in this process is taken out again."""
    path = list(sys.path)
    shutil.copytree(FILES, tmp_path, dirs_exist_ok=True)
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("my_neurons", "my_parts", "elsewhere"):
        sys.modules.pop(name, None)
    if "bent" in neurons():
        unregister("bent")
    sys.path[:] = path


def forget() -> None:
    """As a new process."""
    for name in ("my_neurons", "my_parts"):
        sys.modules.pop(name, None)
    if "bent" in neurons():
        unregister("bent")


def settings(fields: dict[str, Any]) -> list[str]:
    """Fields as words of a command line."""
    return [word for name, value in fields.items() for word in ("--set", f"{name}={value}")]


def test_neuron_network_and_data_in_one_sweep(here: Path) -> None:
    fields = {"model": "my_parts:small_network", "model_options": "{width: 6}"}
    fields |= {"dataset": "my_parts:circle", "dataset_options": "{count: 48}", "epochs": "1"}
    words = ["--code", "my_neurons.py", "--neuron", "linear,bent", "--seeds", 2]
    done = command("sweep", "digits", *words, *settings(fields))
    assert done.exit_code == 0, done.stderr
    assert "bent minus linear" in done.stdout
    assert "2 paired seeds" in done.stdout
    results = [json.loads(path.read_text()) for path in sorted(here.glob("runs/*/result.json"))]
    assert [r["neuron"] for r in results] == ["bent", "bent", "linear", "linear"]
    # 2 -> 6 -> 2 with biases, and one number for each of the six neurons.
    assert [r["params"] for r in results] == [38, 38, 32, 32]
    parts = results[0]["settings"]["checksums"]
    assert set(parts) == {"my_neurons", "my_parts"}
    assert all(len(checksum) == 64 for checksum in parts.values())
    line = RunDirectory(next(here.glob("runs/*bent*-s0"))).command()
    assert "--code my_neurons.py" in line
    assert "checksums" not in line


def trained(here: Path, **fields: Any) -> Path:
    run("digits", run_dir=here / "run", progress=False, **(OWN | fields))
    return here / "run"


def test_the_command_that_goes_on_names_the_code(here: Path) -> None:
    path = trained(here)
    RunDirectory(path).result_file.unlink()
    forget()
    fields = settings({name: json.dumps(value) for name, value in OWN.items()})
    told = command("train", "digits", "--run-dir", path, *fields).stderr
    forget()
    words = shlex.split(told.partition("continue it with `quadric ")[2].partition("`")[0])
    assert words[-2:] == ["--code", "my_parts"]
    assert output(*words, "--quiet")


def trap(here: Path) -> None:
    """Makes code that leaves a trace when it is run."""
    with (here / "my_parts.py").open("a") as file:
        file.write("\nopen('was_run', 'a').close()\n")


RECIPE = "base: digits\nepochs: 1\nmodel: my_parts:small_network\ndataset: my_parts:circle\n"


@pytest.mark.parametrize(
    "words",
    [
        "evaluate run",
        "export run -o x.onnx",
        "analyze run",
        "train run --overwrite",
        "train unfinished --resume",
        "train unfinished --resume --code my_neurons.py",
        "train mine.yaml",
        "sweep mine.yaml --dry-run",
    ],
)
def test_code_that_the_command_does_not_name_is_not_run(here: Path, words: str) -> None:
    trap(here)
    (here / "mine.yaml").write_text(RECIPE)
    shutil.copytree(trained(here), here / "unfinished")
    (here / "unfinished" / "result.json").unlink()
    forget()
    (here / "was_run").unlink()
    told = "uses code of your own (my_parts): look at it, then name it in this call, too: "
    assert_mistake(command(*words.split()), told + "--code my_parts")
    assert not (here / "was_run").exists()
    assert RunDirectory(here / "run").is_finished


def test_code_that_the_command_names_is_run(here: Path) -> None:
    (here / "mine.yaml").write_text(RECIPE)
    path = trained(here)
    forget()
    assert "test accuracy" in output("evaluate", path, "--code", "my_parts.py")
    RunDirectory(path).result_file.unlink()
    forget()
    assert output("train", path, "--resume", "--code", "my_parts", "--quiet")
    assert output("train", "mine.yaml", "--code", "my_parts", "--quiet")


def test_a_finished_run_is_shown_without_running_its_code(here: Path) -> None:
    path = trained(here)
    forget()
    assert output("train", path).startswith("already finished")
    assert "test accuracy" in output("results", path)
    result = run(path)
    assert result.is_ok
    for call in (result.model, lambda: load(path), lambda: evaluate(path)):
        with pytest.raises(InputError, match=r"uses code of your own \(my_parts\).*code=\['my_p"):
            call()
    assert "my_parts" not in sys.modules
    assert isinstance(run(path, code="my_parts").model(), nn.Module)


def test_a_directory_that_names_files_elsewhere_is_not_believed(here: Path) -> None:
    """The recipe is the user's, the directory is somebody's who changed the place of a file."""
    trained(here, code="my_parts.py")
    file = here / "run" / "recipe.yaml"
    file.write_text(file.read_text().replace("- my_parts.py", "- evil/my_parts.py"))
    forget()
    result = run("digits", run_dir=here / "run", code="my_parts.py", progress=False, **OWN)
    assert isinstance(result.model(), nn.Module)  # of the file that this call named


def test_a_network_is_loaded_with_its_own_neuron(here: Path) -> None:
    path = trained(here, neuron="bent", code="my_neurons.py")
    own = ["my_neurons.py", "my_parts.py"]
    values = evaluate(path, code=own)
    forget()
    network = load(path, code=own)
    assert type(network[0]).__name__ == "NeuronLinear"  # type: ignore[index]
    assert not network.training
    assert evaluate(path, code=own) == values


def test_what_is_gone_is_named(here: Path) -> None:
    path = trained(here, neuron="bent", code="my_neurons.py")
    forget()
    sys.path[:] = [p for p in sys.path if p != str(here)]
    (here / "my_neurons.py").rename(here / "elsewhere.py")
    with pytest.raises(InputError, match=r"no file .*my_neurons.py for --code my_neurons.py"):
        load(path, code=["my_neurons.py", "my_parts"])
    (here / "elsewhere.py").rename(here / "my_neurons.py")
    (here / "my_parts.py").unlink()
    with pytest.raises(InputError, match="'my_parts' of model 'my_parts:small_network' must be im"):
        load(path, code=["my_neurons.py", "my_parts"])


def test_a_file_may_move_but_not_change(here: Path) -> None:
    path = trained(here, code="my_neurons.py", neuron="bent")
    RunDirectory(path).result_file.unlink()
    forget()
    (here / "lib").mkdir()
    (here / "my_neurons.py").rename(here / "lib" / "my_neurons.py")
    moved: dict[str, Any] = {"code": ["lib/my_neurons.py", "my_parts"], "progress": False}
    assert run(path, resume=True, **moved).is_ok
    assert RunDirectory(path).recipe().code == ["lib/my_neurons.py"]
    RunDirectory(path).result_file.unlink()
    forget()
    with (here / "lib" / "my_neurons.py").open("a") as file:
        file.write("# changed\n")
    with pytest.raises(InputError, match=r"my_neurons.py has changed since .*: restore it, or"):
        run(path, resume=True, **moved)
    forget()
    with pytest.warns(UserWarning, match=r"my_neurons.py has changed since"):
        assert isinstance(load(path, code=["lib/my_neurons.py", "my_parts"]), nn.Module)


def test_a_changed_file_is_another_run(here: Path) -> None:
    first = plan_run("digits", OWN)
    forget()
    with (here / "my_parts.py").open("a") as file:
        file.write("# changed\n")
    second = plan_run("digits", OWN)
    assert first.directory.path != second.directory.path
    assert first.command == second.command


def test_a_file_here_never_stands_in_for_an_installed_package(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "colorsys.py").write_text("raise SystemExit('run')")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    plan_run("digits", OWN)  # which makes this folder one to import from
    with pytest.raises(InputError, match="the module 'colorsys' must have 'net' for model"):
        plan_run("digits", OWN | {"model": "colorsys:net"})


def test_functions_may_be_given_from_python(here: Path) -> None:
    sys.path.append(str(here))
    import my_parts  # type: ignore[import-not-found]

    fields: dict[str, Any] = BASE | {
        "model": my_parts.small_network, "dataset": my_parts.circle, "loss": my_parts.margin,
    }  # fmt: skip
    result = run("digits", run_dir="run", progress=False, **fields)
    recipe = result.recipe
    assert (recipe.model, recipe.loss) == ("my_parts:small_network", "my_parts:margin")
    assert isinstance(result.model(), nn.Sequential)
    with pytest.raises(InputError, match="model must be a function that has a name in its module"):
        run("digits", run_dir="other", model=lambda: None)


def test_a_loss_of_ones_own_is_minimized_and_reported(here: Path) -> None:
    recipe = plan_run("digits", OWN | {"loss": "my_parts:margin"}).recipe
    data = load_data(recipe)
    outputs, targets = torch.randn(10, 2), torch.randint(2, (10,))
    expected = nn.functional.multi_margin_loss(outputs, targets)
    torch.testing.assert_close(data.task.loss(outputs, targets), expected)
    found = data.task.metrics(data.task.sums(outputs, targets))
    assert found["loss"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(("dataset", "workers"), [("my_parts:noisy", 0), ("my_parts:noisy", 1)])
def test_a_dataset_is_continued_exactly(here: Path, dataset: str, workers: int) -> None:
    fields: dict[str, Any] = OWN | {"dataset": dataset, "workers": workers, "progress": False}
    fields["validation"] = 0.25
    whole = run("digits", run_dir=here / "whole", **fields | {"epochs": 2})
    again = run("digits", run_dir=here / "again", **fields | {"epochs": 2})
    assert curve(whole.values) == curve(again.values)
    state = RunDirectory(again.path)
    records = state.result()["epochs"]
    state.result_file.unlink()
    assert curve(run(again.path, resume=True, code="my_parts", progress=False).values) == curve(
        {"epochs": records}
    )


def test_tensors_of_one_number_a_row_are_a_table(here: Path) -> None:
    recipe = plan_run("law-lorentz", {"dataset": "my_parts:product", "samples": 10}).recipe
    data = load_data(recipe)
    assert isinstance(data, TableRunData)
    inputs, _ = next(iter(data.train(0, 1)))
    assert inputs.shape == (64, 2)
    assert build_network(recipe, data)(inputs).shape == (64, 1)


def test_pictures_of_ones_own_reach_networks_of_ours(here: Path) -> None:
    (here / "elsewhere.py").write_text(
        "import torch\n"
        "def pictures():\n"
        "    part = torch.rand(8, 3, 8, 8), torch.arange(8) % 3\n"
        "    return part, part\n"
    )
    recipe = plan_run("cifar10-resnet20", {"dataset": "elsewhere:pictures"}).recipe
    data = load_data(recipe)
    assert isinstance(data, SampleRunData)
    assert build_network(recipe, data)(torch.zeros(1, 3, 8, 8)).shape == (1, 3)
    flat = plan_run("law-lorentz", {"dataset": "elsewhere:pictures"}).recipe
    rows = load_data(flat)
    assert rows.input_shape == (192,)
    inputs, _ = next(iter(rows.test(0, 1)))
    assert build_network(flat, rows)(inputs).shape == (8, 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "my_parts:nothing"}, "'my_parts' must have 'nothing' for model"),
        ({"model": "no_parts:net"}, "'no_parts' of model 'no_parts:net' must be importable"),
        ({"model": "my_parts:not_a_function"}, "must be a function, got int"),
        ({"model": "my_parts:margin"}, "cannot be called with no options"),
        ({"model_options": {"depth": 3}}, "cannot be called with in_features, out_features, depth"),
        ({"model": "my_parts:_circle", "model_options": {"count": 2, "seed": 0}}, "must return a"),
        ({"dataset": "my_parts:small_network", "dataset_options": {"in_features": 2,
          "out_features": 2}}, "gave Sequential: return (train, test)"),
        ({"dataset_options": {"colour": 1}}, "cannot be called with colour"),
        ({"loss": "margin"}, "loss must be named as package.module:function, got 'margin'"),
        ({"loss": "my_parts:margin", "label_smoothing": 0.1}, "label_smoothing belongs to"),
        ({"data_dir": "there"}, "cannot be called with data_dir"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(here: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, TypeError)) as caught, warnings.catch_warnings():
        run("digits", run_dir=here / "run", progress=False, **(OWN | fields))
    assert message in str(caught.value)
    assert not (here / "run").exists()

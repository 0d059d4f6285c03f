"""Where the numbers of a run go."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import yaml

from quadric.errors import MissingExtraError
from quadric.train.runner import train
from tests.train.small import law_result, law_run


def test_tensorboard_has_curves_and_hyperparameters(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = law_result(tmp_path / "run", neuron="eigen", lr=0.01)
    folder = tmp_path / "run" / "tensorboard"
    events = EventAccumulator(str(folder)).Reload()
    losses = events.Scalars("test_loss")
    assert [event.step for event in losses] == [1, 2, 3]
    assert losses[-1].value == pytest.approx(result["test_loss"], rel=1e-6)
    assert [event.step for event in events.Scalars("test_rmse")][-1] == 3
    # What the tab HPARAMS shows: the settings, and the number that runs are judged by.
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"eigen" in content
    assert b"test_rmse" in (events.summary_metadata["_hparams_/experiment"].plugin_data.content)
    assert yaml.safe_load((folder / "hparams.yaml").read_text())["lr"] == 0.01


def test_curves_can_be_seen_while_it_runs(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = law_run(tmp_path / "run", epochs=2)
    seen = []

    class Screen:
        def write(self, text: str) -> int:
            if text.startswith("epoch "):
                events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
                seen.append(len(events.Scalars("test_loss")))
            return len(text)

        def flush(self) -> None: ...

        def isatty(self) -> bool:
            return False

    train(run, screen=Screen())  # type: ignore[arg-type]
    assert seen == [1, 2]


def test_csv_alone_is_metrics_csv(tmp_path: Path) -> None:
    law_result(tmp_path / "run", logger="csv", epochs=1)
    assert {path.name for path in (tmp_path / "run").iterdir() if path.is_dir()} == {"checkpoints"}
    assert (tmp_path / "run" / "metrics.csv").is_file()


@pytest.mark.parametrize("logger", ["mlflow", "wandb"])
def test_a_logger_that_is_not_installed_is_named(tmp_path: Path, logger: str) -> None:
    if importlib.util.find_spec(logger) is not None:
        pytest.skip(f"{logger} is installed")
    with pytest.raises(MissingExtraError, match=rf"pip install 'quadric\[{logger}\]'"):
        law_result(tmp_path / "run", logger=logger)
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("default")  # theirs
def test_mlflow_keeps_settings_and_curves_in_the_run(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    result = law_result(tmp_path / "run", logger="mlflow", neuron="eigen")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'run' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("law-lorentz")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.data.params["neuron"] == "eigen"
    history = client.get_metric_history(found.info.run_id, "test_loss")
    assert [point.step for point in history] == [1, 2, 3]
    assert history[-1].value == pytest.approx(result["test_loss"])


@pytest.mark.filterwarnings("default")  # theirs
def test_wandb_keeps_each_run_to_itself(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    for name in ("one", "two"):
        law_result(tmp_path / name, logger="wandb", epochs=1)
        assert len(list((tmp_path / name / "wandb").glob("offline-run-*"))) == 1

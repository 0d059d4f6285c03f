"""Where the numbers of a run go besides metrics.csv: TensorBoard, MLflow or Weights & Biases.

All of them write into the run directory, and nothing is sent anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from quadric.train.directory import RunDirectory
from quadric.train.recipe import Recipe


def make_logger(recipe: Recipe, directory: RunDirectory) -> Logger | None:
    """The logger of a recipe."""
    if recipe.logger == "csv":
        return None
    if recipe.logger == "tensorboard":
        return TensorBoardLogger(
            directory.path, name="", version="tensorboard", default_hp_metric=False
        )
    path, name = directory.path.resolve(), directory.path.name
    if recipe.logger == "mlflow":
        store = f"sqlite:///{path / 'mlflow.db'}"
        return MLFlowLogger(
            experiment_name=recipe.name,
            run_name=name,
            tracking_uri=store,
            artifact_location=(path / "mlflow").as_uri(),
        )
    return WandbLogger(name=name, id=name, project=recipe.name, save_dir=path, offline=True)


def log_settings(logger: Logger, recipe: Recipe, judged: dict[str, float] | None = None) -> None:
    """Tells a logger the recipe; TensorBoard's table of runs also what a run is judged by."""
    known = recipe.identity().items()
    settings = {key: value for key, value in known if value not in (None, [], {}, "")}
    if judged is None:
        logger.log_hyperparams(settings)
    elif isinstance(logger, TensorBoardLogger):
        logger.log_hyperparams(settings, judged, step=1)


def log_numbers(logger: Logger, numbers: dict[str, Any], epoch: int) -> None:
    """Tells a logger the numbers of an epoch, counted from 1, so that they can be seen at once."""
    logger.log_metrics(numbers, step=epoch)
    if isinstance(logger, TensorBoardLogger):
        logger.experiment.flush()


def close(loggers: Iterable[Logger]) -> None:
    """Ends what would go on into the next run of this process."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            logger.experiment.finish()

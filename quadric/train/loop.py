"""Training in this process, with lightning's Trainer, up to the result file."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import torch
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ProgressBar, TQDMProgressBar
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import nn

from quadric.ops.native import active, reason, use_kernels
from quadric.saving import save
from quadric.support import provenance
from quadric.support.process import in_notebook, one_thread
from quadric.support.writing import DISK
from quadric.train import checkpoints, loggers
from quadric.train.callbacks import CurvatureWatch, EpochRecords
from quadric.train.checkpoint_plugin import Checkpoints, ShardedNetwork
from quadric.train.data import RunData
from quadric.train.directory import RunDirectory
from quadric.train.evaluation import count, measure
from quadric.train.network import build_network, calibrate_first_
from quadric.train.processes import InterruptedTraining
from quadric.train.profiling import Profile
from quadric.train.recipe import Recipe
from quadric.train.second_order import refine_
from quadric.train.step import DivergedError, TrainingModule

# A step of fewer multiply-accumulates is done before threads have shared it out: one thread is as
# fast, and does not wait for another one on a busy machine.
SMALL_STEP = 50_000_000


def fit(
    recipe: Recipe,
    directory: RunDirectory,
    data: RunData,
    network: nn.Module,
    *,
    screen: TextIO | None = None,
    again: bool = False,
    profile: bool = False,
) -> None:
    """Trains a network in its directory, from its last checkpoint if there is one."""
    counts = count(network, data)
    small = counts["macs"] * recipe.batch_size < SMALL_STEP
    with _quiet_lightning(), _kernels(recipe, screen), one_thread(small):
        # The first process has seen to it that it is the last one.
        resumed = directory.has_checkpoint and not again
        if not resumed:  # a checkpoint brings the scale
            calibrate_first_(network, data)
        module = TrainingModule(network, data, recipe)
        records = EpochRecords(directory, screen)
        curvature = CurvatureWatch()
        callbacks: list[Callback] = [curvature, records]
        if screen is not None and (screen.isatty() or in_notebook()):
            callbacks.append(TQDMProgressBar(refresh_rate=10, leave=False))
        if profile:
            callbacks.append(Profile(directory))
        trainer = _trainer(recipe, directory, callbacks, module)
        diverged: DivergedError | None = None
        try:
            _fit(trainer, module, str(directory.last_checkpoint) if resumed else None)
        except DivergedError as error:
            diverged = error
        finally:
            curvature.end()
            loggers.close(trainer.loggers)
        if not trainer.is_global_zero:
            return
        best = bool(recipe.validation) and diverged is None
        if recipe.strategy == "fsdp":
            # This process holds a piece of the trained network; checkpoints hold all of it.
            network = build_network(recipe, data)
        else:
            network = module.evaluated
        if best or recipe.strategy == "fsdp":
            checkpoint = directory.best_checkpoint if best else directory.last_checkpoint
            _load(network, checkpoint, "network." if recipe.ema is None else "average.")
        if recipe.average is not None and diverged is None:
            network.load_state_dict(records.mean)
        result = _result(recipe, directory, trainer, data, network, records, diverged, counts)
        if recipe.solver is not None and diverged is None:
            result |= refine_(network, data, recipe, screen)
            result["seconds"] += result["second_order"]["seconds"]
        save(network, directory.weights_file)
        if curvature.warning is not None:
            result["curvature_warning"] = curvature.warning
        # Last of all: a run with a result is finished.
        provenance.write_json(directory.result_file, result)


def _load(network: nn.Module, checkpoint: Path, prefix: str) -> None:
    if not checkpoint.is_file():  # sharded, and diverged in the first epoch: as it started
        return
    try:
        state = checkpoints.read(checkpoint)["state_dict"]
    except checkpoints.CheckpointError as error:
        raise checkpoints.CheckpointError(f"{error}: start again with --overwrite") from None
    network.load_state_dict(
        {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    )


def _strategy(recipe: Recipe) -> str | ShardedNetwork:
    processes = recipe.devices * recipe.nodes
    if recipe.strategy == "fsdp":
        # Whole checkpoints: a run may go on with another number of processes, or be looked into.
        return ShardedNetwork(processes, 1, save_distributed_checkpoint=False)
    return "ddp" if processes > 1 else "auto"


def _trainer(
    recipe: Recipe, directory: RunDirectory, callbacks: list[Callback], module: TrainingModule
) -> Trainer:
    accumulate = module.data.accumulate
    steps = len(module.data.train(0, recipe.devices * recipe.nodes)) // accumulate
    plugins: list[Any] = [Checkpoints()]
    if SLURMEnvironment.detect():
        # Its requeueing would save and continue in the middle of an epoch; --resume does not.
        plugins.append(SLURMEnvironment(auto_requeue=False))
    return Trainer(
        accelerator=recipe.accelerator,
        devices=recipe.devices,
        num_nodes=recipe.nodes,
        strategy=_strategy(recipe),
        precision=recipe.precision,
        max_epochs=recipe.epochs,
        logger=loggers.make_logger(recipe, directory) or False,
        # Records are logged once an epoch; a smaller interval would flush files at every step.
        log_every_n_steps=steps,
        callbacks=callbacks,
        plugins=plugins,
        gradient_clip_val=recipe.clip,
        accumulate_grad_batches=accumulate,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        enable_model_summary=False,
        enable_checkpointing=False,  # the records do, epoch by epoch
        enable_progress_bar=any(isinstance(c, ProgressBar) for c in callbacks),
        # Algorithms on a CPU are deterministic; on a GPU those that can be.
        deterministic="warn" if torch.cuda.is_available() else None,
        default_root_dir=directory.path,
    )


def _fit(trainer: Trainer, module: TrainingModule, checkpoint: str | None) -> None:
    """Calls the trainer; Ctrl-C and SIGTERM end it with an `InterruptedTraining`."""
    handler = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()

    def interrupt(number: int, frame: Any) -> None:
        # Raised in a finalizer the exception would be printed and lost: the next step asks again.
        module.interrupted = True
        raise KeyboardInterrupt

    # A process that ignores Ctrl-C, as those do that a script starts with &, goes on ignoring it.
    if main and handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        trainer.fit(module, ckpt_path=checkpoint)
    except (SIGTERMException, KeyboardInterrupt):
        raise InterruptedTraining from None
    except SystemExit:
        # How lightning ends after Ctrl-C.
        if not trainer.interrupted:
            raise
        raise InterruptedTraining from None
    finally:
        if main:
            signal.signal(signal.SIGINT, handler)


def _result(
    recipe: Recipe,
    directory: RunDirectory,
    trainer: Trainer,
    data: RunData,
    network: nn.Module,
    records: EpochRecords,
    diverged: DivergedError | None,
    counts: dict[str, int],
) -> dict[str, Any]:
    epochs = records.records
    last = epochs[-1] if epochs else {}
    task = data.task
    extra: dict[str, Any] = {}
    if records.broken is not None:
        extra["broken_pictures"] = len(records.broken)
    device = trainer.strategy.root_device
    if diverged is not None:
        metrics: dict[str, Any] = dict.fromkeys(task.names)
        extra["diverged"] = {
            "layer": diverged.layer,
            "epoch": diverged.epoch + 1,
            "step": diverged.step + 1,
            "message": str(diverged),
        }
    elif recipe.validation or recipe.average or data.evaluated_part == "val":
        metrics = measure(network, data.test(0, 1), task, device, recipe.precision)
        network.cpu()
        if recipe.validation:
            last = epochs[records.best]
            extra["best_epoch"] = last["epoch"]
        if len(epochs) < recipe.epochs:
            extra["stopped_early"] = True
    else:
        metrics = {name: last.get(f"test_{name}") for name in task.names}
        metrics["largest_activation"] = last.get("largest_activation")
        metrics["largest_activation_layer"] = last.get("largest_activation_layer")
        metrics |= task.finish(network, device)
    result = {
        "recipe": recipe.name,
        "dataset": recipe.dataset,
        "model": recipe.model,
        "neuron": recipe.neuron,
        "rank": recipe.rank,
        "seed": recipe.seed,
        "status": "ok" if diverged is None else "diverged",
        **counts,
        **{f"test_{name}": metrics.pop(name) for name in task.names if name in metrics},
        **metrics,
        **extra,
        "quadratic_share": last.get("quadratic_share"),
        "epochs": epochs,
        "seconds": sum(record["seconds"] for record in epochs)
        + (0.0 if diverged is None else records.seconds_in_epoch()),
        "peak_memory_bytes": provenance.peak_memory(),
        "versions": provenance.versions("lightning"),
        "machine": provenance.machine(),
        "command": directory.command(),
        "settings": recipe.identity(),
    }
    kept: dict[str, Any] = provenance.finite(result)
    return kept


@contextlib.contextmanager
def _kernels(recipe: Recipe, screen: TextIO | None) -> Iterator[None]:
    before = active()
    use_kernels(recipe.kernels)
    if screen is not None and recipe.kernels and recipe.neuron in ("eigen", "shared"):
        state = "on, on the CPU" if active() else f"off: {reason()}"
        print(f"fused kernels are {state}", file=screen)
    try:
        yield
    finally:
        use_kernels(before)


@contextlib.contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Without lightning's notes on hardware, its tips and its advice on data loaders."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    report = threading.excepthook

    def hook(raised: threading.ExceptHookArgs) -> None:
        # TensorBoard writes in a thread, and raises a full disk once more where it is called.
        if not (isinstance(raised.exc_value, OSError) and raised.exc_value.errno in DISK):
            report(raised)

    threading.excepthook = hook
    with warnings.catch_warnings():
        # Ours is no DataLoader with workers; the directory may hold a run that is continued; the
        # last is lightning's own use of torch.
        for text in ("does not have many workers", "directory .* exists and is not", "LeafSpec"):
            warnings.filterwarnings("ignore", message=f".*{text}")
        try:
            yield
        finally:
            threading.excepthook = report
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)

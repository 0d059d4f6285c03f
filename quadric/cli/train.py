"""Commands on training: `quadric recipes`, `train`, `evaluate`, `results` and `sweep`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option

from quadric.cli import options
from quadric.support.extras import require


def recipes(
    name: str | None = Argument(None, help="Show this recipe's file."),
    json_file: options.JsonFile = None,
) -> None:
    """List the recipes of quadric train and what they reproduce, or show one.

    Every recipe but the quick variants (--quick) has the paper's settings, where it has any.

    Example: quadric recipes
    """
    require("train", "quadric recipes")
    from quadric.train import listing

    text = listing.table() if name is None else listing.text(name)
    options.show(text, listing.facts(name), json_file)


# The parameters of `train` that are not fields of a recipe.
_NOT_FIELDS = {
    *("recipe", "quick", "set_", "run_dir", "resume", "overwrite", "quiet", "json_file"),
    *("code", "profile"),
}


def train(
    context: typer.Context,
    recipe: str = Argument(help="A recipe, a .yaml file, or with --resume a run directory."),
    neuron: str | None = Option(None, help="A neuron, see quadric neurons."),
    rank: options.Rank = None,
    quick: options.Quick = False,
    epochs: int | None = Option(None, help="Passes over the training data."),
    batch_size: int | None = Option(
        None, help="Samples per step and process: 2 devices see twice as many."
    ),
    lr: float | None = Option(None, help="Learning rate."),
    quadratic_lr: float | None = Option(None, help="Learning rate of the quadratic parameters."),
    quadratic_weight_decay: float | None = Option(None, help="Their weight decay."),
    weight_decay: float | None = Option(None, help="Weight decay of the others."),
    schedule: str | None = Option(None, help="constant, step, cosine, onecycle or inverse_sqrt."),
    include: options.Include = None,
    exclude: options.Exclude = None,
    first: options.First = None,
    width: float | None = Option(None, help="Multiplies the channels."),
    activation: str | None = Option(None, help="Such as silu, or none."),
    resize: int | None = Option(None, help="Pixels on each side of a picture."),
    validation: float | None = Option(None, help="Share to hold out; the best epoch on it counts."),
    limit: int | None = Option(None, help="The most samples for training, and for the test."),
    seed: int | None = Option(None, help="Of the weights and the data's order."),
    model: str | None = Option(None, help="A network, or module:function of your own."),
    dataset: str | None = Option(None, help="A data set, csv:FILE, or your own module:function."),
    loss: str | None = Option(None, help="A loss of your own, module:function."),
    ema: float | None = Option(None, help="Average the weights, such as 0.999; it is tested."),
    patience: int | None = Option(None, help="Stop after this many epochs without a better one."),
    keep_every: int | None = Option(None, help="Keep the checkpoint of every n-th epoch."),
    logger: str | None = Option(None, help="tensorboard, csv, mlflow or wandb."),
    set_: list[str] | None = Option(
        None, "--set", metavar="FIELD=VALUE", help="Any field of the recipe (repeatable)."
    ),
    data_dir: options.DataDir = None,
    workers: int | None = Option(None, help="Processes that decode pictures."),
    devices: int | None = Option(None, help="Processes on this machine."),
    strategy: str | None = Option(None, help="auto, ddp or fsdp: what several processes share."),
    accelerator: str | None = Option(None, help="cpu, gpu, mps or auto."),
    precision: str | None = Option(None, help="32-true, 16-mixed, bf16-mixed, bf16-true, 64-true."),
    memory_format: str | None = Option(None, help="auto, contiguous or channels_last."),
    compile: bool = Option(False, "--compile", help="Use torch.compile."),
    run_dir: Path | None = Option(None, help="By default runs/<recipe>-<neuron>...-s<seed>."),
    resume: bool = Option(False, "--resume", help="Continue from the last checkpoint."),
    overwrite: bool = Option(False, "--overwrite", help="Train again in the same directory."),
    code: options.Code = None,
    profile: bool = Option(False, "--profile", help="Write what the operators of a step cost."),
    quiet: bool = Option(False, "--quiet", help="No line for each epoch."),
    json_file: options.JsonFile = None,
) -> None:
    """Train a network by a recipe, in a run directory that holds everything about it.

    Ctrl-C, or a kill, loses at most the current epoch: quadric train RUN_DIRECTORY --resume goes
    on. A finished run is not trained again, its result is shown. Several machines: the same
    command under torchrun or srun. Curves while it runs: tensorboard --logdir runs.

    Example: quadric train digits --neuron eigen
    """
    require("train", "quadric train")
    from quadric.train import commands

    given = options.given(context)
    fields = {name: given[name] for name in given if name not in _NOT_FIELDS}
    result, text, status = commands.train(
        recipe,
        commands.overrides(fields, set_ or []),
        quick=quick,
        run_dir=run_dir,
        resume=resume,
        overwrite=overwrite,
        quiet=quiet or json_file == "-",
        code=code or [],
        profile=profile,
        given=[
            *(["--profile"] if profile else []),
            *(["--quiet"] if quiet else []),
            *(["--json", json_file] if json_file else []),
        ],
    )
    if text:  # only the first of several processes has something to say
        options.show(text, result, json_file)
    raise typer.Exit(status)


def evaluate(
    runs: list[Path] = Argument(help="Run directories."),
    test: tuple[Path, Path] | None = Option(
        None, help="Of translation runs: test on these two files, SOURCE TARGET."
    ),
    data_dir: options.DataDir = None,
    code: options.Code = None,
    json_file: options.JsonFile = None,
) -> None:
    """Test the weights of runs on their test data, and count what the networks cost.

    Example: quadric evaluate runs/digits-eigen-k9-s0
    """
    require("train", "quadric evaluate")
    from quadric.runs.tables import facts
    from quadric.support.texttable import text_table
    from quadric.train.evaluation import evaluate

    place: dict[str, Any] = {"code": code or [], **options.place(data_dir)}
    if test is not None:
        place["test"] = test
    found = []
    for run in runs:
        with options.progress_bar(None, f"testing {run}, batches") as advance:
            found.append(evaluate(run, progress=advance, **place))
    text = "\n\n".join(text_table(["", str(one["run"])], facts(one)) for one in found)
    options.show(text, found if len(found) > 1 else found[0], json_file)


def results(
    runs: list[Path] = Argument(help="Run directories, folders of them, or result files."),
    markdown: options.Markdown = False,
    json_file: options.JsonFile = None,
) -> None:
    """Tabulate runs, mean ± standard deviation over seeds, and the differences between arms.

    Arms of a recipe are compared on the seeds that they share, with the linear one if it is there:
    the mean of the paired differences and its 95 % interval.

    Example: quadric results runs/digits-*
    """
    require("train", "quadric results")
    from quadric.train.commands import results

    data, text, notes = results(runs, markdown)
    for note in notes:
        print(note, file=sys.stderr)
    options.show(text, data, json_file)


def sweep(
    recipe: list[str] = Argument(help="Recipes."),
    neuron: str | None = Option(None, help="Neurons, such as linear,eigen."),
    rank: str | None = Option(None, help="Ranks, such as 3,9."),
    seeds: str = Option("1", help="How many, or which: 3 means 0,1,2."),
    set_: list[str] | None = Option(
        None, "--set", metavar="FIELD=VALUES", help="Values of a field, such as lr=0.1,0.2."
    ),
    quick: options.Quick = False,
    jobs: int = Option(1, help="Runs at the same time; from 2 on each has one thread."),
    data_dir: options.DataDir = None,
    runs_dir: Path = Option(Path("runs"), help="Where the run directories are made."),
    code: options.Code = None,
    dry_run: bool = Option(False, "--dry-run", help="List the runs and train none."),
    json_file: options.JsonFile = None,
) -> None:
    """Train every combination of neurons, ranks, values and seeds, and tabulate them.

    Finished runs are skipped. A killed sweep goes on where it was if it is started again.

    Example: quadric sweep digits --neuron linear,eigen --seeds 3 --set quadratic_lr=1e-3,1e-2
    """
    require("train", "quadric sweep")
    from quadric.train import commands, interface
    from quadric.train.grid import seeds_of

    values = commands.grid({"neuron": neuron, "rank": rank}, set_ or [])
    runs = interface.plan_sweep(
        recipe,
        seeds=seeds_of(seeds),
        quick=quick,
        runs=runs_dir,
        code=code or [],
        fields=values | options.place(data_dir),
    )
    if dry_run:
        paths = [str(run.directory.path) for run in runs]
        lines = [f"{path}  {run.command}" for path, run in zip(paths, runs, strict=True)]
        options.show("\n".join(lines), {"runs": paths}, json_file)
        return
    print(f"{len(runs)} runs in {runs_dir}", file=sys.stderr)
    data, text, status = commands.sweep(runs, jobs)
    options.show(text, data, json_file)
    raise typer.Exit(status)

"""The command line: parse, call, print.

How a command is written (`demo` below is the pattern; add a command as one function):

1. `@app.command()`, and under it `@needs("train")` if the command cannot work without an extra:
   the extra is then asked for in one line before anything is computed. An extra that only one
   option needs is asked for with `require("plots", "quadric compare --plot")`.
2. The docstring's first line is `Example: quadric NAME ...`, its second paragraph one sentence that
   says what the command does. `quadric` without argument shows both; `quadric NAME --help` begins
   with the example.
3. Everything heavy is imported inside the function, so that `quadric` answers at once.
4. The function parses, calls one function of the library and prints. `--json` where a program may
   read the output: then nothing but strict JSON goes to stdout.
5. A user's mistake needs no code here. A ValueError, TypeError or ImportError that the library
   raises on purpose, and a file that is missing or cannot be read, become one line on stderr and
   exit code 2. An error that nobody raised on purpose is a bug and keeps its traceback.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from quadric.errors import InputError, QuadricError
from quadric.extras import EXTRAS, missing_extra, require

P = ParamSpec("P")
R = TypeVar("R")


def needs(extra: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a command that cannot work without an extra."""

    def mark(command: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(command)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            require(extra, f"quadric {command.__name__.rstrip('_').replace('_', '-')}")
            return command(*args, **kwargs)

        return checked

    return mark


def _mistake(error: Exception, who: str) -> str | None:
    """The one line that tells a user their mistake; None if the error is not theirs."""
    if hasattr(
        error, "format_message"
    ):  # the parser's own errors: unknown option, missing argument
        message = str(error.format_message())
    elif isinstance(error, QuadricError):
        message = str(error)
    elif isinstance(error, ModuleNotFoundError):
        module = (error.name or "").partition(".")[0]
        extras = [extra for extra, modules in EXTRAS.items() if module in modules]
        if not extras:
            return None
        message = str(missing_extra(who, extras[0]))
    elif isinstance(error, OSError) and error.filename is not None:
        message = f"{error.strerror}: {error.filename}"
    else:
        return None
    return " ".join(message.split())


def _example_and_text(command: Any) -> tuple[str, str]:
    """The example in the first line of a command's docstring, and the rest of it."""
    example, _, text = inspect.cleandoc(command.help or "").partition("\n\n")
    return example.removeprefix("Example:").strip(), text


class _Command(TyperCommand):
    """A command whose help begins with an example."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        example, text = _example_and_text(self)
        formatter.write(f"Example: {example}\n\n")
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text)
        self.format_options(ctx, formatter)


class _Commands(TyperGroup):
    """The group of all commands: shows them with their examples, and words a user's mistakes."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write("Quadric: quadratic neurons as drop-in PyTorch layers.\n\n")
        formatter.write("Usage: quadric COMMAND [OPTIONS]\n\n")
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            example, text = _example_and_text(command)
            summary = " ".join(text.split("\n\n")[0].split())
            formatter.write(f"  {name:<10} {summary}\n  {'':<10} $ {example}\n")
        formatter.write("\nquadric COMMAND --help explains a command; quadric --version.\n")

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except Exception as error:
            words = sys.argv[1:] if args is None else args
            who = " ".join(["quadric", *(word for word in words[:1] if not word.startswith("-"))])
            message = _mistake(error, who)
            if message is None:
                raise
            print(f"Error: {message}", file=sys.stderr)
            code = 2
        if not standalone_mode:
            return code
        sys.exit(code if isinstance(code, int) else 0)


class _App(typer.Typer):
    """A typer app whose commands are `_Command` without saying so each time."""

    def command(self, name: str | None = None, **kwargs: Any) -> Any:
        return super().command(name, cls=_Command, **kwargs)


app = _App(
    cls=_Commands,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"quadric {version('quadric')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def overview(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Quadratic neurons as drop-in PyTorch layers."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
@needs("demo")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the pictures and numbers.")] = Path(
        "runs/demo"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the data and of the first network.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few training steps: a check, not a result.")
    ] = False,
) -> None:
    """Example: quadric demo --out runs/demo

    Show in three scenes, in under two minutes, what a quadratic neuron is good for.

    Networks of linear and of eigen neurons with the same widths learn data in the plane, two
    physical laws and handwritten digits. Writes pictures, a table and demo.json, and says where.
    """
    from quadric.demo import run_demo

    run_demo(out, seed=seed, quick=quick)


@app.command()
def neurons(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print markdown.")] = False,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write JSON; - for stdout.")
    ] = None,
) -> None:
    """Example: quadric neurons

    List the neurons: source, formula, parameters and MACs per output.

    Beside the exact counts stand those that the paper prints, where they differ, and why.
    """
    from quadric.zoo.table import neuron_facts, neuron_table

    if json_file is not None:
        _write_json(json_file, neuron_facts())
    if json_file != "-":
        print(neuron_table(markdown))


@app.command()
def cost(
    name: Annotated[str, typer.Argument(help="A network of quadric.models, or module:factory.")],
    neuron: Annotated[str, typer.Option(help="A neuron, see quadric neurons.")] = "linear",
    rank: Annotated[int | None, typer.Option(help="Its rank; by default its own.")] = None,
    compare: Annotated[
        str | None, typer.Option(help="Neurons side by side, such as linear,eigen,fan.")
    ] = None,
    input: Annotated[
        list[str] | None,
        typer.Option(help="Input shape without the batch: 3x32x32, or 128:int64 for token ids."),
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="Convert only the first layers, such as first:3.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print markdown.")] = False,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write JSON; - for stdout.")
    ] = None,
) -> None:
    """Example: quadric cost resnet20 --neuron eigen --rank 9

    Count the parameters and MACs of a network, layer by layer, or of several neurons in it.

    Counts are for one input, and nothing is computed: the network runs on the meta device.
    """
    from quadric.models.named import compare_neurons, comparison_table, network_cost

    if compare is None:
        report = network_cost(name, neuron, rank, layers, input)
        result: Any = report.to_dict()
        text = report.to_markdown() if markdown else str(report)
    else:
        result = compare_neurons(name, compare.split(","), rank, layers, input)
        text = comparison_table(result, markdown)
    if json_file is not None:
        _write_json(json_file, result)
    if json_file != "-":
        print(text)


@app.command()
def convert(
    checkpoint: Annotated[Path, typer.Argument(help="A torch state dict or safetensors file.")],
    model: Annotated[str, typer.Option(help="A network of quadric.models, or module:factory.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The safetensors file to write.")],
    neuron: Annotated[str, typer.Option(help="A neuron, see quadric neurons.")] = "eigen",
    rank: Annotated[int | None, typer.Option(help="Its rank; by default its own.")] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(help="Convert only these layers: a name, a suffix or re:REGEX (repeatable)."),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Leave these layers linear, likewise (repeatable).")
    ] = None,
    first: Annotated[int | None, typer.Option(help="Convert only the first so many.")] = None,
    head: Annotated[bool, typer.Option("--head", help="Convert the last layer too.")] = False,
    input: Annotated[
        list[str] | None,
        typer.Option(help="Input shape of a factory's network, such as 3x32x32 or 128:int64."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Option of the network (repeatable)."),
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write JSON; - for stdout.")
    ] = None,
) -> None:
    """Example: quadric convert resnet18.pth --model resnet18 --rank 9 -o quadratic.safetensors

    Make a trained network quadratic without changing what it computes.

    The file written loads with quadric.load_ into the plain network, which it converts. Torch files
    are read without unpickling anything but tensors.
    """
    from quadric.models.checkpoints import convert_checkpoint

    report = convert_checkpoint(
        checkpoint, out, model, neuron, rank, include, exclude, first, head, input, set_
    )
    if json_file is not None:
        _write_json(json_file, report.to_dict() | {"out": str(out)})
    if json_file != "-":
        print(report)
        print(f"wrote {out}")


@app.command()
@needs("train")
def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this recipe's file.")] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write JSON; - for stdout.")
    ] = None,
) -> None:
    """Example: quadric recipes

    List the recipes of quadric train and what they reproduce, or show one.

    Every recipe but the quick variants (--quick) has the paper's settings, where it has any.
    """
    from quadric.train import listing

    if json_file is not None:
        _write_json(json_file, listing.facts(name))
    if json_file != "-":
        print(listing.table() if name is None else listing.text(name))


@app.command()
@needs("train")
def train(
    recipe: Annotated[
        str, typer.Argument(help="A recipe, a .yaml file, or with --resume a run directory.")
    ],
    neuron: Annotated[str | None, typer.Option(help="A neuron, see quadric neurons.")] = None,
    rank: Annotated[int | None, typer.Option(help="Its rank; by default its own.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The variant that takes minutes; not the paper's.")
    ] = False,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training data.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples a step and process: 2 devices see twice as many.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    eigenvalue_lr: Annotated[
        float | None, typer.Option(help="Learning rate of the quadratic parameters.")
    ] = None,
    eigenvalue_weight_decay: Annotated[
        float | None, typer.Option(help="Weight decay of the quadratic parameters.")
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay of the others.")] = None,
    schedule: Annotated[
        str | None, typer.Option(help="constant, step, cosine or onecycle.")
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(help="Convert only these layers: a name, a suffix or re:REGEX (repeatable)."),
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="Leave these layers linear, likewise (repeatable).")
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="Convert only the first layers, such as first:3.")
    ] = None,
    width: Annotated[float | None, typer.Option(help="Multiplies the channels.")] = None,
    activation: Annotated[str | None, typer.Option(help="Such as silu, or none.")] = None,
    resize: Annotated[int | None, typer.Option(help="Pixels a side of the pictures.")] = None,
    validation: Annotated[
        float | None, typer.Option(help="Hold out so much; the best epoch on it counts.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="At most so many training, and test, samples.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the weights and the data's order.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Any field of the recipe (repeatable)."),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data set is.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that decode pictures.")] = None,
    devices: Annotated[int | None, typer.Option(help="Processes on this machine.")] = None,
    strategy: Annotated[
        str | None, typer.Option(help="auto, ddp or fsdp: what several processes share.")
    ] = None,
    accelerator: Annotated[str | None, typer.Option(help="cpu, gpu, mps or auto.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="32-true, bf16-mixed, 16-mixed, bf16-true or 64-true.")
    ] = None,
    compile: Annotated[bool, typer.Option("--compile", help="Use torch.compile.")] = False,
    run_dir: Annotated[
        Path | None, typer.Option(help="By default runs/<recipe>-<neuron>...-s<seed>.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Train again in the same directory.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No line for each epoch.")] = False,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the result; - for stdout.")
    ] = None,
) -> None:
    """Example: quadric train digits --neuron eigen

    Train a network by a recipe, in a run directory that holds everything about it.

    Ctrl-C, or a kill, loses at most the current epoch: quadric train RUN_DIRECTORY --resume goes
    on. A finished run is not trained again, its result is shown. Several machines: the same
    command under torchrun or srun.
    """
    from quadric.train import commands

    named = dict(
        neuron=neuron,
        rank=rank,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        eigenvalue_lr=eigenvalue_lr,
        eigenvalue_weight_decay=eigenvalue_weight_decay,
        weight_decay=weight_decay,
        schedule=schedule,
        include=include,
        exclude=exclude,
        layers=layers,
        width=width,
        activation=activation,
        resize=resize,
        validation=validation,
        limit=limit,
        seed=seed,
        data_dir=None if data_dir is None else str(data_dir),
        workers=workers,
        devices=devices,
        strategy=strategy,
        accelerator=accelerator,
        precision=precision,
        compile=compile or None,
    )
    _check_json(json_file)
    result, text, code = commands.train(
        recipe,
        named,
        set_ or [],
        quick=quick,
        run_dir=run_dir,
        resume=resume,
        overwrite=overwrite,
        quiet=quiet or json_file == "-",
    )
    if json_file is not None and result is not None:
        _write_json(json_file, result)
    if text and (json_file != "-" or result is None):
        # Where a program reads stdout, a person reads how to go on after Ctrl-C.
        print(text, file=sys.stderr if json_file == "-" else sys.stdout)
    raise typer.Exit(code)


@app.command()
@needs("train")
def evaluate(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    data_dir: Annotated[Path | None, typer.Option(help="Where the data set is now.")] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write JSON; - for stdout.")
    ] = None,
) -> None:
    """Example: quadric evaluate runs/digits-eigen-k9-s0

    Test the weights of runs on their test data, and count what the networks cost.
    """
    from quadric.train import commands

    _check_json(json_file)
    found = commands.evaluate(runs, data_dir)
    if json_file is not None:
        _write_json(json_file, found if len(runs) > 1 else found[0])
    if json_file != "-":
        print(commands.evaluation_text(found))


@app.command()
@needs("train")
def results(
    runs: Annotated[
        list[Path], typer.Argument(help="Run directories, folders of them, or result files.")
    ],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print markdown.")] = False,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write JSON; - for stdout.")
    ] = None,
) -> None:
    """Example: quadric results runs/digits-*

    Tabulate runs, mean ± standard deviation over seeds, and the differences between arms.

    Arms of a recipe are compared on the seeds that they share, with the linear one if it is there:
    the mean of the paired differences and its 95 % interval.
    """
    from quadric.train import commands

    data, text, notes = commands.results(runs, markdown)
    for note in notes:
        print(note, file=sys.stderr)
    if json_file is not None:
        _write_json(json_file, data)
    if json_file != "-":
        print(text)


@app.command()
@needs("train")
def sweep(
    recipe: Annotated[list[str], typer.Argument(help="Recipes.")],
    neuron: Annotated[str | None, typer.Option(help="Neurons, such as linear,eigen.")] = None,
    rank: Annotated[str | None, typer.Option(help="Ranks, such as 3,9.")] = None,
    seeds: Annotated[str, typer.Option(help="How many, or which: 3 means 0,1,2.")] = "1",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=VALUES", help="Values of a field, such as lr=0.1,0.2."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The variants that take minutes; not the paper's.")
    ] = False,
    jobs: Annotated[
        int, typer.Option(help="Runs at the same time; from 2 on each has one thread.")
    ] = 1,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data set is.")] = None,
    runs_dir: Annotated[Path, typer.Option(help="Where the run directories are made.")] = Path(
        "runs"
    ),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and train none.")
    ] = False,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write JSON; - for stdout.")
    ] = None,
) -> None:
    """Example: quadric sweep digits --neuron linear,eigen --seeds 3 --set eigenvalue_lr=1e-3,1e-2

    Train every combination of neurons, ranks, values and seeds, and tabulate them.

    Finished runs are skipped and a killed sweep goes on where it was: start it again.
    """
    from quadric.train import commands

    _check_json(json_file)
    data, text, code = commands.sweep(
        recipe,
        {"neuron": neuron, "rank": rank},
        set_ or [],
        seeds,
        quick=quick,
        jobs=jobs,
        data_dir=data_dir,
        runs_dir=runs_dir,
        dry_run=dry_run,
    )
    if json_file is not None and data:
        _write_json(json_file, data)
    if json_file != "-" or not data:
        print(text, file=sys.stderr if json_file == "-" else sys.stdout)
    raise typer.Exit(code)


# What may stand beside an option of `bench` that says itself what is timed.
_ALONE = {
    "tables": {"rows", "repeats", "json_file"},
    "onnx": {"rounds", "threads", "json_file"},
    "suite": {"paths", "batch", "repeats", "rounds", "threads", "memory", "json_file", "picture"},
}


def _given(context: typer.Context) -> set[str]:
    """The parameters that stand on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source and source.name == "COMMANDLINE"}


@app.command()
def bench(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(help="A network, transformer, or module:factory; else single layers."),
    ] = None,
    neurons: Annotated[str, typer.Option(help="Neurons to compare with linear, or all.")] = (
        "eigen,shared"
    ),
    paths: Annotated[
        str,
        typer.Option(
            help="Of plain, kernels, compiled (networks: also -joined, for inference -fused), "
            "straightforward, bare-pass."
        ),
    ] = "plain,kernels",
    formats: Annotated[str, typer.Option(help="Of nchw, channels_last.")] = "nchw,channels_last",
    dtypes: Annotated[str, typer.Option(help="Of float32, bf16.")] = "float32",
    shapes: Annotated[
        str | None, typer.Option(help="Layers as channels x size x batch: 20x32x128,40x16x128.")
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(help="Cost against rank instead: 1,3,7,15,31,63.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Batch size of a network.", min=1)] = None,
    input: Annotated[
        list[str] | None,
        typer.Option(help="Input shape without the batch: 3x32x32, or 128:int64 (repeatable)."),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Timed runs (of tables at most 5).", min=1)] = 20,
    rounds: Annotated[
        int, typer.Option(help="Make the whole comparison so often, say the spread.", min=1)
    ] = 1,
    suite: Annotated[
        bool, typer.Option("--suite", help="ResNet-20, a Transformer, layers: the whole table.")
    ] = False,
    threads: Annotated[int | None, typer.Option(help="Threads of torch.", min=1)] = None,
    memory: Annotated[bool, typer.Option(help="Measure peak memory too.")] = True,
    tables: Annotated[
        bool, typer.Option("--tables", help="Time fits of tables instead: quadric.sklearn.")
    ] = False,
    rows: Annotated[int, typer.Option(help="Rows of the table.", min=2)] = 7373,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Time exported networks in ONNX Runtime instead.")
    ] = False,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write JSON; - for stdout.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the ratios.")
    ] = None,
) -> None:
    """Example: quadric bench --model resnet20

    Time quadratic layers and networks against linear ones, interleaved, with peak memory.
    """
    _check_json(json_file)
    for name, chosen in (("tables", tables), ("onnx", onnx), ("suite", suite)):
        extra = _given(context) - {name, *_ALONE[name]}
        if chosen and extra:
            option = {"json_file": "json", "picture": "plot"}.get(min(extra), min(extra))
            raise InputError(
                f"--{name} says itself what is timed, got --{option} with it: leave it out"
            )
    if tables:
        require("tables", "quadric bench --tables")
        from quadric.sklearn.bench import bench_tables

        fits = bench_tables(rows=rows, repeats=min(repeats, 5))
        if json_file is not None:
            _write_json(json_file, fits.to_dict())
        if json_file != "-":
            print(fits)
        return
    if onnx:
        require("onnx", "quadric bench --onnx")
        from quadric.bench.command import onnx_command

        found = onnx_command(rounds, threads or 1)
        if json_file is not None:
            _write_json(json_file, found.to_dict())
        if json_file != "-":
            print(found)
        return
    if picture is not None:
        require("plots", "quadric bench --plot")
        from quadric.bench.plot import check_format

        check_format(picture)
        _check_file("--plot", picture)
    from quadric.bench.command import bench_command

    report = bench_command(
        model,
        neurons,
        paths,
        formats,
        dtypes,
        shapes,
        ranks,
        batch,
        input,
        repeats,
        threads,
        memory,
        rounds,
        suite,
    )
    if json_file is not None:
        _write_json(json_file, report.to_dict())
    if json_file != "-":
        print(report)
        if suite:
            from quadric.bench.suite import summary

            print("\n" + summary(report.rows))
    if picture is not None:
        from quadric.bench.plot import plot

        plot(report, picture)


@app.command()
@needs("tables")
def compare(
    source: Annotated[
        str | None,
        typer.Argument(metavar="FILE|law:NAME|uci:NAME|DATASET", help="What to learn from."),
    ] = None,
    target: Annotated[str | None, typer.Option(help="Column to predict, of a file.")] = None,
    task: Annotated[
        str | None, typer.Option(help="regression or classification; else found from the target.")
    ] = None,
    neurons: Annotated[
        str, typer.Option(help="Neurons to compare with linear, with rank: eigen:3,shared.")
    ] = "eigen,shared",
    hidden: Annotated[str, typer.Option(help="Hidden layers of the linear network.")] = "64,64",
    activation: Annotated[
        str, typer.Option(help="silu, relu, tanh, logistic or identity.")
    ] = "silu",
    folds: Annotated[int, typer.Option(help="Folds of the cross-validation.")] = 5,
    seeds: Annotated[int, typer.Option(help="Starts of each network on each fold.", min=1)] = 3,
    seed: Annotated[int, typer.Option(help="Of the split and the first start.", min=0)] = 0,
    epochs: Annotated[
        int | None, typer.Option(help="Epochs at most; else enough to converge.", min=1)
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="First rows of a file, or samples of a law.", min=1)
    ] = None,
    delimiter: Annotated[str | None, typer.Option(help="Of a file; else found.")] = None,
    drop: Annotated[str, typer.Option(help="Columns to leave out: a,b.")] = "",
    categories: Annotated[str, typer.Option(help="Columns to take as categories: a,b.")] = "",
    data_dir: Annotated[Path | None, typer.Option(help="Where the UCI tables are.")] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Where fits are kept; else under runs/compare.")
    ] = None,
    baselines: Annotated[bool, typer.Option(help="Fit scikit-learn's models too.")] = True,
    save: Annotated[
        Path | None,
        typer.Option(help="Refit the best quadratic network: model.onnx or model.safetensors."),
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write JSON; - for stdout.")
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List laws and data sets, and exit.")
    ] = False,
) -> None:
    """Example: quadric compare houses.csv --target price

    Say whether a quadratic network is better on a table, and by how much.

    Networks of equal size and scikit-learn's models are cross-validated. Every fit is kept: the
    same command goes on where it was stopped.
    """
    if list_:
        from quadric.sklearn.comparison.sources import list_sources, source_facts

        if json_file is not None:
            _write_json(json_file, source_facts())
        if json_file != "-":
            print(list_sources(data_dir))
        return
    if source is None:
        raise InputError(
            "name a table: quadric compare FILE --target COLUMN, law:NAME, uci:NAME or a data set "
            "(quadric compare --list)"
        )
    if save is not None and save.suffix == ".onnx":
        require("onnx", "quadric compare --save model.onnx")
    from rich.console import Console
    from rich.progress import Progress

    from quadric.sklearn import compare as compare_table
    from quadric.sklearn.comparison.saving import check_path

    def words(text: str) -> list[str]:
        return [word.strip() for word in text.split(",") if word.strip()]

    if not all(word.isdecimal() for word in words(hidden)):
        raise InputError(f"hidden must be positive whole numbers, as in 64,64, got {hidden!r}")
    if save is not None:
        check_path(save, json_file)
    if json_file not in (None, "-") and not Path(str(json_file)).parent.is_dir():
        folder = str(Path(str(json_file)).parent)
        raise InputError(f"--json needs an existing directory, got {folder!r}: make it")
    bar = Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    shown = bar.add_task("comparing", total=None)
    try:
        with bar:
            found = compare_table(
                source,
                target=target,
                task=task,
                neurons=neurons,
                hidden=[int(word) for word in words(hidden)],
                activation=activation,
                folds=folds,
                seeds=seeds,
                seed=seed,
                epochs=epochs,
                rows=rows,
                delimiter={"\\t": "\t", "tab": "\t"}.get(delimiter or "", delimiter),
                drop=words(drop),
                categories=words(categories),
                data_dir=data_dir,
                run_dir=run_dir,
                baselines=baselines,
                save=save,
                progress=lambda done, what, total: bar.update(
                    shown, advance=done, description=what or "comparing", total=total
                ),
            )
    except KeyboardInterrupt:
        print("stopped: the same command goes on with the fits it has", file=sys.stderr)
        raise typer.Exit(130) from None
    if json_file is not None:
        from quadric.provenance import finite

        _write_json(json_file, finite(found.to_dict()))
    if json_file != "-":
        print(found)
        if found.python_line() is not None:
            print(f"In Python: {found.python_line()}")
        print("\n".join(found.written))


@app.command()
def export(
    source: Annotated[
        Path, typer.Argument(help="A run directory, or a file of quadric.save with --model.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file: .onnx, or .pt2 of torch.export.")
    ],
    model: Annotated[
        str | None, typer.Option(help="The network of a file: of quadric.models, or module:factory")
    ] = None,
    input: Annotated[
        list[str] | None,
        typer.Option(help="Its input shape without the batch: 3x32x32, or 128:int64."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Option of the network (repeatable)."),
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8", help="Quantize a convolutional network of a run.")
    ] = False,
    calibration: Annotated[
        int, typer.Option(help="Training inputs that set the ranges of int8.")
    ] = 256,
    max_drop: Annotated[
        float, typer.Option(help="Loss of accuracy in int8 above which nothing is written.")
    ] = 0.02,
    opset: Annotated[int, typer.Option(help="Version of ONNX's operators.")] = 20,
    data_dir: Annotated[Path | None, typer.Option(help="Where a run's data set is now.")] = None,
    threads: Annotated[int, typer.Option(help="Threads while latency is measured.", min=1)] = 1,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write JSON; - for stdout.")
    ] = None,
) -> None:
    """Example: quadric export runs/digits-eigen-k9-s0 -o model.onnx

    Write a trained network for ONNX Runtime or torch.export, checked, and time it beside linear.

    The file is run at several batch sizes and compared with the network; if they differ, nothing is
    written. BatchNorm is folded into the layers. Sizes and latencies stand beside those of the same
    network with linear neurons.
    """
    _check_json(json_file)
    if out.suffix == ".onnx":
        require("onnx", "quadric export to .onnx")
    from quadric.exporting.deploying import check_format, deploy, deployment_table

    check_format(out, int8)
    if not source.exists():
        raise InputError(
            f"there is no run directory or file {source}: name one of quadric train, or a file of "
            "quadric.save"
        )
    if source.is_dir():
        require("train", "quadric export of a run")
        from quadric.train.deployment import from_run

        if model is not None or input or set_:
            raise InputError(
                f"{source} is a run directory, which knows its network: leave --model, --input and "
                "--set out"
            )
        what = from_run(source, **({} if data_dir is None else {"data_dir": str(data_dir)}))
    else:
        from quadric.models.checkpoints import parse_options
        from quadric.models.weights_file import from_file

        what = from_file(source, model, input, parse_options(set_ or []))
    result = deploy(
        what,
        out,
        int8=int8,
        calibrate_on=calibration,
        max_drop=max_drop,
        opset=opset,
        threads=threads,
    )
    if json_file is not None:
        _write_json(json_file, result)
    if json_file != "-":
        print(deployment_table(result))


def _check_json(file: str | None) -> None:
    """Refuse a file that cannot be written, before the work whose result it would hold."""
    if file is not None and file != "-":
        _check_file("--json", Path(file))


def _check_file(option: str, path: Path) -> None:
    if not path.parent.is_dir():
        raise InputError(
            f"{option} {path}: there is no directory {path.parent}: make it, or name another file"
        )
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"{option} {path} cannot be written: name another file")


def _write_json(file: str, value: Any) -> None:
    """Write strict JSON to a file, or to stdout for "-"."""
    import json

    text = json.dumps(value, indent=2, allow_nan=False)
    if file == "-":
        print(text)
    else:
        Path(file).write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Entry point of the `quadric` command."""
    app()


if __name__ == "__main__":
    main()

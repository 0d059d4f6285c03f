"""The command `quadric bench`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer
from typer import Option

from quadric.cli import options
from quadric.errors import InputError
from quadric.support.extras import require
from quadric.support.progress import duration, say
from quadric.support.writing import check_writable

_TIMING = {"paths", "repeats", "rounds", "threads", "memory"}
_CHOICE = {"neurons", "formats", "dtypes"}
# For each option that says what is timed, why most others make no sense, and those that do.
_BESIDE: dict[str, tuple[str, set[str]]] = {
    "tables": ("--tables says itself what is timed", {"rows", "repeats"}),
    "onnx": ("--onnx says itself what is timed", {"rounds", "threads"}),
    "suite": ("--suite says itself what is timed", {*_TIMING, "batch"}),
    "ranks": ("--ranks times one convolution", {*_TIMING, "neurons", "picture"}),
    "model": ("--model is a network of its own", {*_TIMING, *_CHOICE, "batch", "input"}),
    "shapes": ("single layers have --shapes", {*_TIMING, *_CHOICE}),
}


def _kind(context: typer.Context) -> str:
    """Which option says what is timed; refuses options that have no meaning beside it."""
    named = options.given(context)
    kind = next((name for name in _BESIDE if name in named), "shapes")
    rule, beside = _BESIDE[kind]
    extra = sorted(set(named) - {kind, *beside, "json_file"})
    if extra:
        option = next(p.opts[0] for p in context.command.params if p.name == extra[0])
        raise InputError(f"{rule}, got {option} with it: leave it out")
    return kind


def bench(
    context: typer.Context,
    model: str | None = Option(
        None, help="A network, transformer, or module:factory; else single layers."
    ),
    neurons: str = Option("eigen,shared", help="Neurons to compare with linear, or all."),
    paths: str = Option("plain,kernels", help="Of plain, kernels, compiled."),
    formats: str = Option("channels_last", help="Of nchw, channels_last."),
    dtypes: str = Option("float32", help="Of float32, bf16."),
    shapes: str | None = Option(
        None, help="Layers as channels x size x batch: 20x32x128,40x16x128."
    ),
    ranks: str | None = Option(None, help="Cost against rank instead: 1,3,7,15,31,63."),
    batch: int | None = Option(None, help="Batch size of a network.", min=1),
    input: options.Inputs = None,
    repeats: int | None = Option(
        None, help="Timed runs: 3 (5 of tables), or 12 of --suite.", min=1
    ),
    rounds: int = Option(1, help="How often to repeat the comparison, for its spread.", min=1),
    suite: bool = Option(False, "--suite", help="Every row of docs/speed.md: takes long."),
    threads: int | None = Option(None, help="Threads of torch.", min=1),
    memory: bool = Option(True, help="Measure peak memory too."),
    tables: bool = Option(False, "--tables", help="Time fits of tables instead: quadric.sklearn."),
    rows: int = Option(7373, help="Rows of the table.", min=2),
    onnx: bool = Option(False, "--onnx", help="Time exported networks in ONNX Runtime instead."),
    json_file: options.JsonFile = None,
    picture: Path | None = Option(None, "--plot", metavar="FILE", help="Draw cost against rank."),
) -> None:
    """Time quadratic layers and networks against linear ones, interleaved, with peak memory.

    Example: quadric bench --model resnet20
    """
    kind = _kind(context)
    if tables:
        require("tables", "quadric bench --tables")
        from quadric.bench.tables import bench_tables

        say("fits of tables against MLPRegressor: a minute or a few")
        fits = bench_tables(rows=rows, repeats=min(repeats or 5, 5))
        return options.show(fits, fits.to_dict(), json_file)
    if onnx:
        require("onnx", "quadric bench --onnx")
        from quadric.bench.onnx import CASE, NETWORKS, bench_onnx

        total = rounds * sum(len(network.batches) for network in NETWORKS)
        say(f"this takes about {duration(total * CASE)}")
        with options.progress_bar(total, "timing") as tick:
            found = bench_onnx(rounds=rounds, threads=threads or 1, tick=tick)
        return options.show(found, found.to_dict(), json_file)
    if picture is not None:
        require("plots", "quadric bench --plot")
        from quadric.bench.plot import check_format, plot

        check_format(picture)
        check_writable("--plot", picture)

    import torch

    from quadric import layers
    from quadric.bench import cases as known
    from quadric.bench.command import EXPENSIVE, REPEATS, chosen, usable_paths
    from quadric.bench.run import AT_LEAST, expected_seconds, run, timed_runs
    from quadric.bench.suite import suite_cases, summary
    from quadric.support.process import keep_freed_memory

    if threads is not None:
        torch.set_num_threads(threads)
    ways = chosen("paths", options.words(paths), known.PATHS)
    layouts = chosen("formats", options.words(formats), known.FORMATS)
    types = chosen("dtypes", options.words(dtypes), known.DTYPES)
    notes: list[str] = []
    named = options.words(neurons)
    if neurons == "all":
        named = [name for name in layers.neurons() if name not in EXPENSIVE]
        notes.append(f"left out, as they take hours unless named: {', '.join(EXPENSIVE)}")
    compared = chosen("neurons", named, layers.neurons())
    sizes: tuple[tuple[int, int, int], ...] = known.ANCHOR_SHAPES
    if shapes is not None:
        parsed = [options.numbers("shapes", shape, "x", 3) for shape in options.words(shapes)]
        sizes = tuple(dict.fromkeys((size[0], size[1], size[2]) for size in parsed))
    ways, more = usable_paths(ways)
    if kind == "suite":
        cases = suite_cases(ways, batch=batch)
    elif ranks is not None:
        with_rank = [name for name in compared if layers.get_neuron(name).has_rank]
        if not with_rank:
            raise InputError(f"--ranks needs neurons that have a rank, got {neurons}")
        path = "kernels" if "kernels" in ways else ways[0]
        cases = known.rank_cases(
            tuple(dict.fromkeys(options.numbers("ranks", ranks))), with_rank, path
        )
    elif model is not None:
        cases = known.network_cases(model, compared, ways, layouts, types, batch, input)
    else:
        cases = known.layer_cases(compared, sizes, ways, layouts, types)
    repeats = repeats or REPEATS[suite]
    keeps = keep_freed_memory()
    about = duration(expected_seconds(cases, repeats, rounds))
    for note in [*notes, *more, f"this takes about {about}"]:
        say(note)
    with options.progress_bar(timed_runs(cases, repeats, rounds), "timing") as tick:
        report = run(cases, repeats, memory, tick, rounds, AT_LEAST)
    report = replace(report, keeps_memory=keeps)
    text = f"{report}\n\n{summary(report.rows)}" if suite else str(report)
    options.show(text, report.to_dict(), json_file)
    if picture is not None:
        plot(report, picture)

"""The command `quadric bench`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from typer import Option

from quadric.cli import options
from quadric.errors import InputError
from quadric.support.progress import duration, say

EXPENSIVE = ("general", "pure")
"""Neurons with a matrix for each output: `--neurons all` leaves them out, as they take hours."""


def _chosen(what: str, text: str, known: Collection[str]) -> list[str]:
    """The names that an option lists."""
    names = options.words(text)
    for name in names:
        if name not in known:
            raise InputError(f"{what} must be among {', '.join(known)}, got {name!r}")
    if not names:
        raise InputError(f"{what} must name at least one of {', '.join(known)}, got none")
    return list(dict.fromkeys(names))


def bench(
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
    batch: int | None = Option(None, help="Batch size of a network.", min=1),
    input: options.Inputs = None,
    repeats: int = Option(3, help="Timed runs.", min=1),
    rounds: int = Option(1, help="How often to repeat the comparison, for its spread.", min=1),
    threads: int | None = Option(None, help="Threads of torch.", min=1),
    device: str | None = Option(None, help="cpu or cuda; by default cuda where there is one."),
    memory: bool = Option(True, help="Measure peak memory too."),
    json_file: options.JsonFile = None,
) -> None:
    """Time quadratic layers and networks against linear ones, interleaved, with peak memory.

    Example: quadric bench --model resnet20
    """
    if model is not None and shapes is not None:
        raise InputError("--model is a network of its own, got --shapes with it: leave it out")
    if model is None and (batch is not None or input):
        option = "--input" if input else "--batch"
        raise InputError(f"single layers have --shapes, got {option} with it: leave it out")

    import torch

    from quadric import layers
    from quadric.bench import cases as known
    from quadric.bench.comparison import AT_LEAST, compare, expected_seconds, timed_runs
    from quadric.support.process import keep_freed_memory

    if threads is not None:
        torch.set_num_threads(threads)
    places = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    place = places[-1] if device is None else _chosen("device", device, places)[0]
    layouts = _chosen("formats", formats, known.FORMATS)
    types = _chosen("dtypes", dtypes, known.DTYPES)
    named = neurons
    if neurons == "all":
        named = ",".join(name for name in layers.neurons() if name not in EXPENSIVE)
        say(f"left out, as they take hours unless named: {', '.join(EXPENSIVE)}")
    compared = _chosen("neurons", named, layers.neurons())
    sizes: tuple[tuple[int, int, int], ...] = known.ANCHOR_SHAPES
    if shapes is not None:
        parsed = [options.numbers("shapes", shape, "x", 3) for shape in options.words(shapes)]
        sizes = tuple(dict.fromkeys((size[0], size[1], size[2]) for size in parsed))
    ways, note = known.usable_paths(_chosen("paths", paths, known.PATHS), place)
    if model is not None:
        cases = known.network_cases(
            model, compared, ways, layouts, types, batch, input, device=place
        )
    else:
        cases = known.layer_cases(compared, sizes, ways, layouts, types, device=place)
    if note is not None:
        say(note)
    keeps = keep_freed_memory()
    say(f"this takes about {duration(expected_seconds(cases, repeats, rounds))}")
    with options.progress_bar(timed_runs(cases, repeats, rounds), "timing") as tick:
        report = compare(cases, repeats, memory, tick, rounds, AT_LEAST)
    report = replace(report, keeps_memory=keeps)
    options.show(report, report.to_dict(), json_file)

"""The commands `quadric analyze`, `figures` and `report`."""

from __future__ import annotations

from pathlib import Path

from typer import Argument, Option

from quadric.cli import options
from quadric.errors import InputError
from quadric.support.extras import require
from quadric.support.progress import duration, say
from quadric.support.writing import check_writable


def analyze(
    runs: list[Path] = Argument(help="Run directories of finished runs."),
    pictures: int = Option(500, help="Test pictures, or rows, to run the network on.", min=1),
    show: str | None = Option(
        None, metavar="PLACES", help="Show the responses to these of them, such as 0,17."
    ),
    picture: list[Path] | None = Option(
        None, help="Show the responses to this picture file (repeatable)."
    ),
    layer: list[str] | None = Option(None, help="Show this layer's responses (repeatable)."),
    cutoff: float = Option(0.25, help="Highest low frequency, in cycles per pixel.", min=0.0),
    data_dir: options.DataDir = None,
    code: options.Code = None,
    json_file: options.JsonFile = None,
) -> None:
    """Measure what the neurons of trained networks learned, layer by layer.

    Writes analysis.json into each run directory, and pictures beside it: parameters and true
    eigenvalues by depth, responses of the linear and the quadratic part, their low frequencies; for
    a table which columns the network couples.

    Example: quadric analyze runs/digits-eigen-k9-s0
    """
    require("train", "quadric analyze")
    require("plots", "quadric analyze")
    from quadric import analysis
    from quadric.analysis.drawing import draw
    from quadric.analysis.figures import OF_ANALYSES
    from quadric.runs.reading import read_runs

    places = None if show is None else _places(show)
    texts, analyses = [], []
    for run in runs:
        with options.progress_bar(None, "loading") as told:
            one = analysis.analyze(
                run,
                count=pictures,
                show=places,
                pictures=picture or (),
                layers=layer or None,
                cutoff=cutoff,
                progress=told,
                code=code or [],
                **options.environment(data_dir),
            )
        one.save(run / "analysis.json")
        (finished,), _ = read_runs(run / "result.json")
        finished.analysis = one
        files, _ = draw([finished], list(OF_ANALYSES), run / "analysis")
        written = "\n".join(str(file) for file in (run / "analysis.json", *files))
        texts.append(f"{run}\n\n{one}\n\n{written}")
        analyses.append(dict(one))
    options.show("\n\n".join(texts), analyses if len(analyses) > 1 else analyses[0], json_file)


def _places(text: str) -> list[int]:
    words = options.words(text)
    if not words or not all(word.isdecimal() for word in words):
        raise InputError(f"--show must be whole numbers joined by ',', got {text!r}")
    return [int(word) for word in words]


def figures(
    runs: list[Path] = Argument(help="Run directories, folders of them, or result files."),
    which: str = Option(
        "efficiency,neurons,stability,distribution,responses,laws",
        help="Of these, and frequencies and couplings.",
    ),
    out: Path = Option(Path("figures"), "--out", "-o", help="The folder for the files."),
    latex: bool = Option(False, "--latex", help="Write the numbers as LaTeX tables, too."),
    width: float | None = Option(None, help="Inches; by default a column or both.", min=1.0),
    json_file: options.JsonFile = None,
) -> None:
    """Draw the paper's Figs. 4 to 8 from any runs, as PNG and PDF, with their numbers as CSV.

    Distributions, responses, frequencies and couplings are drawn for the runs that quadric analyze
    has measured.

    Example: quadric figures runs/* --which efficiency,stability -o figures
    """
    require("plots", "quadric figures")
    from quadric.analysis.drawing import draw
    from quadric.runs.reading import read_runs

    finished, notes = read_runs(runs)
    names = options.words(which)
    with options.progress_bar(None, "drawing") as told:
        files, missing = draw(finished, names, out, latex=latex, width=width, progress=told)
    for note in (*notes, *missing):
        say(note)
    written = [str(file) for file in files]
    data = {"runs": len(finished), "files": written, "notes": [*notes, *missing]}
    options.show("\n".join(written), data, json_file)


def report(
    runs: list[Path] = Argument(help="Run directories, folders of them, or result files."),
    out: Path = Option(Path("report.html"), "--out", "-o", help="The page."),
    title: str = Option("Quadric runs", help="Its title."),
    json_file: options.JsonFile = None,
) -> None:
    """Make one page of any runs: a table, scores against cost, curves, recipes and commands.

    The page is one file that opens from disk and loads nothing from the network.

    Example: quadric report runs/* -o report.html
    """
    from quadric.analysis.page import SECONDS, report
    from quadric.runs.reading import read_runs

    check_writable("--out", out)
    finished, notes = read_runs(runs)
    say(f"a page of {len(finished)} runs, about {duration(len(finished) * SECONDS)}")
    report(finished, out, title=title, notes=notes)
    for note in notes:
        say(note)
    size = out.stat().st_size
    text = f"{out}: {len(finished)} runs, {size:,} bytes"
    options.show(text, {"file": str(out), "runs": len(finished), "bytes": size}, json_file)

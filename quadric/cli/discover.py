"""The command `quadric discover`."""

from __future__ import annotations

from pathlib import Path

from typer import Argument, Option

from quadric.cli import options
from quadric.support.extras import require


def discover(
    source: str = Argument(
        metavar="FILE|law:NAME|feynman:NAME|FORMULA", help="What to find formulas for."
    ),
    target: str | None = Option(None, help="Column to predict, of a file."),
    units: str = Option("", help="Units of all columns: mass=kg,speed=m/s; or in the names."),
    rows: int | None = Option(None, help="First rows of a file, or samples of a law.", min=1),
    seconds: float = Option(60.0, help="About how long to search at most.", min=0.1),
    most: int = Option(10, help="Formulas to show at most.", min=1),
    seed: int = Option(0, help="Of the rows that are held out.", min=0),
    picture: Path | None = Option(None, help="Draw error against length into this file."),
    json_file: options.JsonFile = None,
) -> None:
    """Find the formula behind a table, with error bars.

    Short and rough formulas come first, then longer and better ones; the best is marked. Ctrl-C
    ends the search and keeps what it has. A formula to try: "x*y + z**2; x=0:1; y=0:1; z=0:1".

    Example: quadric discover pendulum.csv --target period
    """
    require("discover", "quadric discover")
    from quadric.discover import formulas
    from quadric.errors import InputError
    from quadric.support.provenance import finite
    from quadric.support.writing import check_writable, whole_file

    pairs = [word.partition("=") for word in options.words(units)]
    wrong = [name for name, equals, _ in pairs if not equals]
    if wrong:
        raise InputError(f"--units are NAME=UNIT joined by commas, got {wrong[0]!r}: mass=kg,v=m/s")
    if picture is not None:
        check_writable("--picture", picture)
    with options.progress_bar(None, "searching") as advance:
        found = formulas(
            source,
            target=target,
            units={name.strip(): unit for name, _, unit in pairs} or None,
            rows=rows,
            seconds=seconds,
            most=most,
            seed=seed,
            progress=advance,
        )
    if picture is not None:
        with whole_file(picture) as file:
            found.picture().savefig(file, format=picture.suffix[1:] or "png", dpi=150)
    options.show(str(found), finite(found.to_dict()), json_file)

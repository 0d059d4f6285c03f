"""The command `quadric demo`."""

from __future__ import annotations

from pathlib import Path

from typer import Option

from quadric.support.extras import require


def demo(
    out: Path = Option(Path("runs/demo"), help="Folder for the pictures and numbers."),
    seed: int = Option(0, help="Seed of the data and of the first network."),
    quick: bool = Option(False, "--quick", help="A few training steps: a check, not a result."),
) -> None:
    """Show in three scenes, in about a minute, what quadratic neurons are good for.

    Networks of linear and of shared neurons with the same widths learn data in the plane, two
    physical laws (by Adam and by second order) and handwritten digits. Writes pictures, a table and
    demo.json, says where, and names three commands to try next.

    Example: quadric demo --out runs/demo
    """
    require("demo", "quadric demo")
    from quadric.demo import run_demo

    run_demo(out, seed=seed, quick=quick)

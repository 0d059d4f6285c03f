"""What quadratic neurons and a solver of second order are good for, in three scenes.

Two networks of the same widths, one of linear and one of shared neurons, learn (1) data in the
plane that no line separates, (2) physical laws from samples, by Adam and by second order, (3)
handwritten digits, with ReLU and with no activation function at all. The numbers are printed as
they come, also where curvature does not win.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from quadric.demo.pictures import draw_all
from quadric.demo.scenes import NEURONS, SEEDS, all_tasks, run_task
from quadric.demo.table import demo_table
from quadric.errors import InputError
from quadric.support import provenance
from quadric.support.process import one_thread
from quadric.support.progress import progress_bar, say
from quadric.support.writing import write_text

NEXT = {
    "discover feynman:I.12.11": "a law from a table of numbers",
    "compare diabetes --folds 3 --seeds 1": "which model is best on a table",
    "cost resnet20 --compare linear,eigen,shared": "what curvature costs a network",
}
"""Commands to try next, and what each shows; the extra `demo` brings what they need."""


def _program() -> str:
    """How this program was called, where that is not by its name alone."""
    called = sys.argv[0]
    known = Path(called).stem == "quadric" and shutil.which("quadric") != called
    return called if known else "quadric"


def run_demo(out: Path, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """Runs the three scenes, prints their table and writes everything into a folder."""
    if not 0 <= seed < 2**31:
        raise InputError(f"seed must be between 0 and 2147483647, got {seed}: choose another one")
    if out.exists() and not out.is_dir():
        raise InputError(f"out must be a folder, got the file {out}: give another name")
    out.mkdir(parents=True, exist_ok=True)

    tasks, seeds = all_tasks(), SEEDS
    if quick:
        tasks = [
            dataclasses.replace(task, steps=12, second_order=min(task.second_order, 2))
            for task in tasks
        ]
        seeds = 2
    say(f"three scenes, in {'a few seconds' if quick else 'about a minute'}")
    started = time.perf_counter()
    total = sum(task.length for task in tasks) * seeds * len(NEURONS)
    with one_thread():
        # The first optimizer step of a process loads half of torch: not the first network's time.
        run_task(dataclasses.replace(tasks[0], steps=1), "shared", seed, 1, lambda steps: None)
        trained = []
        with progress_bar(total, "training") as advance:
            for task, neuron in itertools.product(tasks, NEURONS):
                told = partial(advance, now=f"{task.name}, {neuron} ({task.solver})")
                trained.append(run_task(task, neuron, seed, seeds, told))
        pictures = draw_all(trained, out)
        report = {
            "seed": seed,
            "seeds": seeds,
            "quick": quick,
            "rows": [each.to_dict() for each in trained],
            "seconds": time.perf_counter() - started,
            **provenance.stamp("matplotlib", "scikit-learn"),
        }
    report = provenance.finite(report)
    provenance.write_json(out / "demo.json", report)
    write_text(out / "table.md", demo_table(report, markdown=True))

    print(demo_table(report))
    print(f"{report['seconds']:.0f} seconds. Everything is in {out}/:")
    for path in (*pictures, out / "table.md", out / "demo.json"):
        print(f"  {path}")
    print("\nTry next:")
    lines = {f"{_program()} {command}": shown for command, shown in NEXT.items()}
    for line, shown in lines.items():
        print(f"  {line:<{max(map(len, lines))}}  # {shown}")
    return report

"""One process of a run on several devices, which `processes.launch` starts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from quadric.errors import QuadricError
from quadric.support.process import keep_freed_memory
from quadric.train.directory import RunDirectory
from quadric.train.processes import (
    INTERRUPTED,
    MISTAKE,
    InterruptedTraining,
    die_with_parent,
)
from quadric.train.recipe import make_recipe
from quadric.train.runner import PlannedRun, progress_stream, train


def main(handed: str) -> int:
    """Trains what the starting process planned."""
    die_with_parent()
    keep_freed_memory()
    given = json.loads(handed)
    run = PlannedRun(
        make_recipe(given["recipe"], "the recipe"),
        RunDirectory(Path(given["directory"])),
        given["command"],
        given["named"],
        tuple(given["code"]),
    )
    try:
        train(run, screen=progress_stream(given["quiet"]), **given["options"])
    except InterruptedTraining:
        return INTERRUPTED
    except QuadricError as error:
        # Where torch's launcher looks for the reason, and the starting process reads it.
        Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(
            json.dumps({"message": str(error)}), encoding="utf-8"
        )
        return MISTAKE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

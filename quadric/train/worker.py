"""One process of a run on several devices: `torchrun -m quadric.train.worker RUN_DIRECTORY`."""

from __future__ import annotations

import sys
from pathlib import Path

from quadric.support.process import keep_freed_memory
from quadric.train.directory import RunDirectory
from quadric.train.lifeline import die_with_parent
from quadric.train.run_code import code_words, load_code


def main(arguments: list[str]) -> int:
    """Trains the run of a directory, or goes on with it."""
    from quadric.train.loop import fit
    from quadric.train.processes import INTERRUPTED, InterruptedTraining, is_first_process

    die_with_parent()
    keep_freed_memory()
    directory = RunDirectory(Path(arguments[0]))
    try:
        recipe = directory.recipe()
        # The process that started this one has written the recipe, and was told to run its code.
        recipe = load_code(recipe, (), directory.path, functions=code_words(recipe)[1::2])
        quiet = "--quiet" in arguments or not is_first_process()
        screen = None if quiet else sys.stderr
        fit(recipe, directory, screen=screen, profile="--profile" in arguments)
    except InterruptedTraining:
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

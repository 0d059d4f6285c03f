"""The commands of the README and of the pages, run one after the other as a reader would.

They take minutes each page, so all of them are slow; `test_docs.py` parses every command each time.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import DOCS, PAGES, ROOT, python_blocks

BIN = Path(sys.executable).parent
READ = [ROOT / "README.md", *PAGES]
PROGRAMS = re.compile(r"^(\w+=\S+ )?(quadric|python|torchrun|echo) ")
NOT_HERE = {
    r"cifar|imagenet|wmt14|multi30k|uci:|newstest": "needs a data set that is not inside",
    r"--nnodes": "needs two machines",
    r"bench$|bench --neurons|tools/speed": "takes long; its numbers are in results/",
}


def steps(page: Path) -> list[tuple[str, str]]:
    """The files that a page shows, as (name, text), and its commands, as ("", command)."""
    found = []
    blocks = r'```(\w*)(?: title="(\S+)")?\n(.*?)```'
    for language, name, text in re.findall(blocks, page.read_text("utf-8"), re.DOTALL):
        if name:
            found.append((name, text))
        elif language in ("", "sh"):
            lines = [re.sub(r" +#.*", "", line) for line in text.replace("\\\n", " ").splitlines()]
            found += [("", line) for line in lines if PROGRAMS.match(line)]
    return found


def runs_here(command: str) -> bool:
    logger = re.search(r"--logger (\w+)", command)
    if logger and importlib.util.find_spec(logger[1]) is None:
        return False
    return not any(re.search(pattern, command) for pattern in NOT_HERE)


def run(command: str, folder: Path) -> str:
    # torchrun may be missing where torch is not in this environment itself
    line = command.replace("torchrun ", "python -m torch.distributed.run ")
    env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        line, shell=True, cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a reader has: a table, a checkpoint, weights, and a neuron and a run of other pages."""
    import torch

    import quadric

    folder = tmp_path_factory.mktemp("desk")
    draw = random.Random(0)
    with (folder / "houses.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["area", "rooms", "town", "price"])
        for _ in range(300):
            area, town = draw.uniform(40, 200), draw.choice(["north", "south"])
            price = 2 * area * (1.5 if town == "north" else 1) + draw.gauss(0, 5)
            rows.writerow([f"{area:.1f}", draw.randint(1, 6), town, f"{price:.1f}"])
    (neuron,) = (code for code in python_blocks(DOCS / "neurons.md") if "register(" in code)
    (folder / "my_neurons.py").write_text(neuron, encoding="utf-8")
    torch.save(quadric.models.create("resnet18").state_dict(), folder / "resnet18.pth")
    quadric.save(quadric.models.create("resnet20", neuron="eigen"), folder / "weights.safetensors")
    run("quadric train digits --neuron eigen", folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in READ if any(not name and runs_here(text) for name, text in steps(page))],
    ids=lambda page: page.stem,
)
def test_commands_of_a_page_run(page: Path, desk: Path, tmp_path: Path) -> None:
    folder = tmp_path / "desk"
    shutil.copytree(desk, folder)
    for name, text in steps(page):
        if name:
            (folder / name).write_text(text, encoding="utf-8")
        elif runs_here(text):
            run(text, folder)


@pytest.mark.slow
def test_both_ways_to_share_a_network_give_the_same_loss(tmp_path: Path) -> None:
    """As docs/many_machines.md says of its program."""
    found = steps(ROOT / "docs" / "many_machines.md")
    (program,) = (text for name, text in found if name)
    (tmp_path / "many.py").write_text(program, encoding="utf-8")
    ddp, fsdp = (run(text, tmp_path) for _, text in found if "many.py" in text)
    assert ddp.startswith("loss ")
    assert ddp == fsdp

"""Who may import whom, and what `import quadric` loads.

The first half reads every import statement of the package, those inside functions too, and holds
them against the levels below: an import points to a lower level, to the same level where that is
allowed, or stays within its unit. A unit is a file or folder directly under quadric/.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "quadric"

# A new file or folder of the package takes its place here.
LEVELS = {
    "_quiet_import": 0,
    "_autograd": 0,
    "_behind": 0,
    "_compiled": 0,
    "_dense": 0,
    "_joined": 0,
    "_norm": 0,
    "_owning": 0,
    "_summing": 0,
    "_squares": 0,
    "_text": 0,
    "_threads": 0,
    "functional": 0,
    "init": 0,
    "kernels": 0,
    "maps": 0,
    "decomposition": 1,
    "nn": 1,
    "zoo": 1,
    "attention": 1,
    "_operators": 2,
    "_following": 2,
    "_selection": 2,
    "_targets": 2,
    "_swapping": 2,
    "conversion": 2,
    "counting": 2,
    "exporting": 2,
    "folding": 2,
    "fusing": 2,
    "joining": 2,
    "optim": 2,
    "provenance": 2,
    "saving": 2,
    "screening": 2,
    "models": 3,
    "data": 4,
    "networks": 4,
    "analysis": 5,
    "bench": 5,
    "checkpoints": 5,
    "demo": 5,
    "deployment": 5,
    "sklearn": 5,
    "train": 5,
    "__init__": 6,
    "cli": 6,
}
# Within level 1: from → to. Levels 0 and 2 are one heap of small files each.
SIDEWAYS = {
    ("nn", "decomposition"),
    ("zoo", "nn"),
    ("zoo", "decomposition"),
    ("attention", "nn"),
    ("attention", "zoo"),
    ("train", "checkpoints"),  # how layers are chosen on the command line
}
HEAPS = {0, 2}

# What may be imported from outside, besides the standard library and torch, and by whom alone.
OUTSIDE = {
    "lightning": {"train"},
    "typer": {"cli"},
    "sklearn": {"sklearn", "data"},
    "safetensors": {"saving", "checkpoints", "train"},
    "onnx": {"exporting"},
    "onnxruntime": {"exporting", "bench"},
}
# The levels that need nothing but torch and what OUTSIDE names.
LEAN = 3


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    """Each module that a file imports, with its line; `from quadric import x` as `quadric.x`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                folder = path.relative_to(PACKAGE.parent).parts[: -node.level]
                module = ".".join([*folder, *([node.module] if node.module else [])])
            else:
                module = str(node.module)
            if module == "quadric":
                yield from ((f"quadric.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield module, node.lineno


def unit_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def faults_in(path: Path) -> list[str]:
    """The imports of one file that break the rule, in words."""
    unit = unit_of(path)
    if unit not in LEVELS:
        return [f"quadric/{unit} has no level: give it one in tests/test_imports.py"]
    level, faults = LEVELS[unit], []
    for module, line in imports_of(path):
        where = f"{path.relative_to(PACKAGE.parent)}:{line} imports {module}"
        top, _, rest = module.partition(".")
        if top == "quadric":
            target = rest.partition(".")[0]
            if target == "__version__":
                continue
            if target not in LEVELS:
                # A name that the package itself exports: only the top may go through the top.
                if level < LEVELS["cli"] and (PACKAGE / "__init__.py") != path:
                    faults.append(f"{where}: import it from its own module")
                continue
            sideways = level == LEVELS[target] and (
                level in HEAPS or (unit, target) in SIDEWAYS or unit == target
            )
            if not (LEVELS[target] < level or sideways):
                faults.append(f"{where}: level {LEVELS[target]} from level {level}")
        elif top in OUTSIDE:
            if unit not in OUTSIDE[top]:
                faults.append(f"{where}: only {', '.join(sorted(OUTSIDE[top]))} may")
        elif level <= LEAN and top != "torch" and top not in sys.stdlib_module_names:
            faults.append(f"{where}: levels 0 to {LEAN} need nothing but torch")
    return faults


def test_imports_point_down() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 10
    faults = [fault for path in files for fault in faults_in(path)]
    assert not faults, "\n".join(faults)


# models/ stands above the converter, so that create() and fit() may call it; its networks may not.
def test_networks_know_nothing_of_quadratic_neurons() -> None:
    verbs = {"__init__.py", "fitting.py"}
    files = [path for path in (PACKAGE / "models").glob("*.py") if path.name not in verbs]
    assert files
    for path in files:
        for module, line in imports_of(path):
            inside = module.startswith("quadric.") and not module.startswith("quadric.models")
            assert not inside, f"{path.name}:{line} imports {module}"


@pytest.mark.parametrize(
    ("unit", "statement", "fault"),
    [
        ("functional", "from quadric.nn import QuadraticLinear", "level 1 from level 0"),
        ("nn", "from quadric import zoo", "level 1 from level 1"),
        ("nn", "def f():\n    import numpy", "nothing but torch"),
        ("counting", "from quadric import QuadraticLinear", "import it from its own module"),
        ("data", "import lightning.pytorch", "only train may"),
        ("train", "import typer", "only cli may"),
        ("models", "import sklearn.datasets", "may"),
        ("surprise", "import torch", "has no level"),
    ],
)
def test_the_rule_can_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str, statement: str, fault: str
) -> None:
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path / "quadric")
    path = tmp_path / "quadric" / f"{unit}.py"
    path.parent.mkdir()
    path.write_text(statement, encoding="utf-8")
    (found,) = faults_in(path)
    assert fault in found


# numpy is torch's own guest: torch imports it if it is there, Quadric never does (see above).
# safetensors, which comes with every install, is small and a part of saving.
HEAVY = (
    "lightning",
    "pytorch_lightning",
    "torchmetrics",
    "tensorboard",
    "yaml",
    "pydantic",
    "pooch",
    "PIL",
    "sklearn",
    "scipy",
    "pandas",
    "pyarrow",
    "matplotlib",
    "plotly",
    "torch._dynamo",
    "onnx",
    "onnxscript",
    "onnxruntime",
    "transformers",
    "accelerate",
    "typer",
    "rich",
    "fvcore",
)


def heavy_after(statement: str) -> list[str]:
    """The heavy modules that a fresh process has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*(name for name in {HEAVY} if name in sys.modules))"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    return run.stdout.split()


def test_import_quadric_loads_only_torch() -> None:
    assert (
        heavy_after("import quadric; quadric.QuadraticLinear(2, 3)(__import__('torch').ones(2))")
        == []
    )


def test_the_import_test_can_fail() -> None:
    assert heavy_after("import quadric, yaml") == ["yaml"]

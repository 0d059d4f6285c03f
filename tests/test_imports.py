"""Who may import whom, and what `import quadric` loads.

The first part reads every import statement of the package, those inside functions too. A file may
import only what stands above it in `ORDER`. Imports for type checkers (`if TYPE_CHECKING`) do not
count. CONTRIBUTING.md shows the order of the folders, and a test compares the two.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import quadric

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "quadric"

# One ordered list for each folder; a new file or folder takes its place here. A folder's __init__
# may import its own files. It stands last in its folder unless it is named.
ORDER: dict[str, list[str]] = {
    folder: names.split()
    for folder, names in {
        "": """
            errors support user_code decomposition ops functional layers counting conversion
            named_adapters saving optim share watchdog exporting models solve data runs train
            tables sklearn encrypted discover analysis bench demo cli __main__
        """,
        "support": """
            assignments checks extras locks process texttable progress writing tensor_files
            provenance modules
        """,
        "ops": """
            torch_probes blocks linear_ops reference torch_views cpu_matmul cache native
            triton_kernels gpu backends autograd compiled
        """,
        "layers": """
            tracing dense parameters scale neuron layer fused squares eigen shared products
            gates full kervolution eigen_layer linear conv make table attention_products
            attention parabola
        """,
        "counting": "operators cost_report cost",
        "conversion": """
            targets swapping description conversion_report selection polynomials planning
            transformers_loading pretrained convert calibration sensitivity revert
        """,
        "exporting": """
            examples checking batchnorm_pairs folding export_report onnx_forms pipeline program
            onnx_file step_files int8 timing deploying
        """,
        "solve": """
            unknowns jacobian jets problems systems levenberg choice starts terms frameworks rows
            fit door
        """,
        "models": """
            activations widths mlp cnn5 digits_cnn resnet transformer beam_search registry trained
            building size_to_budget __init__ named weight_files
        """,
        "data": """
            cells columns user_table table_files batches images digits tables preparation laws files
            mnist formula_text cifar folders uci user_dataset csv_tables intervals text
        """,
        "data/text": "lines tokenizer sentences token_batches corpus wmt14 scores",
        "runs": "metrics reading groups tables",
        "train": """
            recipe catalog tasks translation schedule monitors run_code run_data text_run_data
            data directory checkpoints network evaluation second_order translating exported_run
            processes step loggers callbacks checkpoint_plugin profiling loop runner worker grid api
        """,
        "tables": """
            checks adam losses jobs stacks modules training linear second_order parameters scoring
            target_transforms estimator_files explaining inputs fitted estimators regressor
            classifier loading predicting many comparison
        """,
        "tables/comparison": """
            measures splitting baselines plan fit_log fits report winner picture saving sources
            compare
        """,
        "encrypted": """
            recording polynomial parameters diagonals messages seal arithmetic checking pair
        """,
        "discover": "terms selection numbers units models doubts powers support search result door",
        "analysis": """
            forms eigenvectors distributions frequencies samples couplings formula measuring
            analyzing style analysis_figures figures drawing page
        """,
        "bench": "cases memory comparison",
        "demo": "scenes table pictures",
        "cli": """
            options demo neurons train translate tables discover export encrypted analysis bench app
        """,
    }.items()
}

# What comes from outside, and who alone imports it.
OUTSIDE = {
    "lightning": {"train"},
    "typer": {"cli"},
    "rich": {"support"},
    "sklearn": {"tables", "data", "bench"},
    "safetensors": {"support", "conversion"},
    "transformers": {"conversion"},
    "onnx": {"exporting"},
    "onnxruntime": {"exporting", "bench"},
    "sentencepiece": {"data"},
    "sacrebleu": {"data"},
    "tenseal": {"encrypted"},
    "triton": {"ops"},
}
# Up to here, nothing is needed but torch and what OUTSIDE names.
LAST_LEAN = "solve"


def parts_of(path: Path) -> tuple[str, ...]:
    """A file as its place in `ORDER`: ("ops", "blocks"); ("ops", "__init__")."""
    return path.relative_to(PACKAGE).with_suffix("").parts


def resolve(module: str, name: str = "") -> tuple[str, ...]:
    """The place of what `from module import name` loads."""
    parts = [*module.split(".")[1:], *([name] if name else [])]
    while parts:
        if PACKAGE.joinpath(*parts).with_suffix(".py").is_file():
            return tuple(parts)
        if PACKAGE.joinpath(*parts, "__init__.py").is_file():
            return (*parts, "__init__")
        parts.pop()
    return ("__init__",)


def imports_of(path: Path) -> Iterator[tuple[str, str, int]]:
    """Each import of a file: the module, the name taken from it or "", and the line."""
    todo: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            todo += node.orelse
        else:
            todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from ((alias.name, "", node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: write the whole name of the module"
            yield from ((str(node.module), alias.name, node.lineno) for alias in node.names)


def position(folder: str, name: str) -> float:
    """Where a file or folder stands among its neighbors."""
    order = ORDER[folder]
    return order.index(name) if name in order or name != "__init__" else len(order)


def is_above(target: tuple[str, ...], place: tuple[str, ...]) -> bool:
    """Whether a file may import another one."""
    if place[-1] == "__init__" and target[: len(place) - 1] == place[:-1]:
        return True
    depth = next(i for i, (a, b) in enumerate(zip(target, place, strict=False)) if a != b)
    folder = "/".join(place[:depth])
    return position(folder, target[depth]) < position(folder, place[depth])


def faults_in(path: Path) -> list[str]:
    """The imports of one file that break the rules, in words."""
    place = parts_of(path)
    folder = "/".join(place[:-1])
    if place[-1] != "__init__" and place[-1] not in ORDER.get(folder, []):
        return [f"quadric/{'/'.join(place)}.py has no place: give it one in tests/test_imports.py"]
    faults = []
    for module, name, line in imports_of(path):
        where = f"{path.relative_to(PACKAGE.parent)}:{line} imports {module} {name}".rstrip()
        top = module.partition(".")[0]
        if top == "quadric":
            target = resolve(module, name)
            if target == place or name == "__version__":
                continue
            if target == ("__init__",):
                faults.append(f"{where}: import it from its own module")
            elif not is_above(target, place):
                faults.append(f"{where}: it does not stand above")
            elif name.startswith("_"):
                faults.append(f"{where}: the name is private")
        elif top in OUTSIDE:
            if place[0] not in OUTSIDE[top]:
                faults.append(f"{where}: only {', '.join(sorted(OUTSIDE[top]))} may")
        elif top not in ("torch", *sys.stdlib_module_names):
            if place == ("__init__",) or position("", place[0]) <= position("", LAST_LEAN):
                faults.append(f"{where}: up to {LAST_LEAN}, nothing but torch is needed")
    return faults


def test_a_file_imports_only_what_stands_above_it() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 10
    faults = [fault for path in files for fault in faults_in(path)]
    assert not faults, "\n".join(faults)


def test_what_has_a_place_is_there() -> None:
    for folder, names in ORDER.items():
        assert len(set(names)) == len(names)
        for name in names:
            path = PACKAGE / folder / name
            assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), path


def test_networks_know_nothing_of_quadratic_neurons() -> None:
    networks = ORDER["models"][: ORDER["models"].index("registry")]
    assert networks
    for name in networks:
        for module, _, line in imports_of(PACKAGE / "models" / f"{name}.py"):
            inside = module.startswith("quadric")
            known = module.startswith(("quadric.models.", "quadric.support.", "quadric.errors"))
            assert known or not inside, f"{name}.py:{line} imports {module}"


def test_contributing_shows_this_order() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    shown = re.findall(r"`([\w/]+)`", " ".join(rows))
    files = [f"{name}/" if (PACKAGE / name).is_dir() else name for name in ORDER[""]]
    assert shown == files


def test_names_for_type_checkers_are_those_that_users_get() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    static = {
        alias.asname: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    assert set(static) == set(quadric.__all__)
    assert set(static) <= set(dir(quadric))
    for name, module in static.items():
        home = importlib.import_module(module)
        assert getattr(quadric, str(name)) is getattr(home, str(name))
        assert getattr(quadric, str(name)).__name__.split(".")[-1] == name
    with pytest.raises(AttributeError, match="module 'quadric' has no attribute 'nothing'"):
        _ = quadric.nothing  # type: ignore[attr-defined]


# numpy is torch's own guest: torch imports it if it is there, Quadric never does (see above).
# safetensors, which comes with every install, is small and a part of saving.
HEAVY = """
    lightning pytorch_lightning torchmetrics tensorboard yaml pydantic pooch PIL sklearn scipy
    pandas pyarrow matplotlib plotly torch._dynamo onnx onnxscript onnxruntime transformers
    accelerate typer rich fvcore sentencepiece sacrebleu tenseal
""".split()


def loaded_after(*statements: str) -> list[list[str]]:
    """Which heavy modules a fresh process has loaded after each of these statements."""
    show = f"\nprint(*(n for n in {('torch', 'safetensors', *HEAVY)} if n in sys.modules))\n"
    code = "import sys\n" + "".join(statement + show for statement in statements)
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    return [line.split() for line in run.stdout.splitlines()]


def test_import_quadric_loads_nothing_and_its_names_only_torch() -> None:
    use = "quadric.QuadraticLinear(2, 3)(__import__('torch').ones(2));"
    # These need more, and are asked for.
    doors = ("analysis", "bench", "data", "demo", "discover", "runs", "sklearn", "train")
    every = f"[getattr(quadric, name) for name in dir(quadric) if name not in {doors}]"
    first, second, third = loaded_after(
        "import quadric", use + every, "import quadric.data, quadric.models"
    )
    assert first == []
    assert second == third == ["torch", "safetensors"]


# Rooms that no user asks for by name: their names stand at the top, or in the public door.
INSIDE = {
    "support",
    "user_code",
    "decomposition",
    "adapters",
    "saving",
    "optim",
    "share",
    "watchdog",
}
INSIDE |= {"tables", "cli", "named_adapters", "__main__"}


def test_every_room_is_reached_after_import_quadric() -> None:
    code = "import quadric, sys\nfor name in sys.argv[1:]: print(getattr(quadric, name).__name__)"
    rooms = [name for name in ORDER[""] if name not in INSIDE]
    run = subprocess.run([sys.executable, "-c", code, *rooms], capture_output=True, text=True)
    assert run.stdout.split() == [f"quadric.{name}" for name in rooms], run.stderr

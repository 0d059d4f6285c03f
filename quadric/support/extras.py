"""Optional dependencies: which extra brings which packages, and the one check for them."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from quadric.errors import MissingExtraError

EXTRAS: dict[str, tuple[str, ...]] = {
    "train": ("lightning", "tensorboard", "yaml", "pydantic", "pooch", "PIL", "sklearn"),
    "tables": ("sklearn", "pandas", "pyarrow"),
    "discover": ("sympy", "pint", "sklearn", "pandas", "pyarrow", "matplotlib"),
    "rivals": ("lightgbm",),
    "plots": ("matplotlib", "pandas", "sympy"),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "hf": ("transformers", "accelerate"),
    "text": ("sentencepiece", "sacrebleu"),
    "demo": ("sympy", "pint", "sklearn", "pandas", "pyarrow", "matplotlib"),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
    "encrypted": ("tenseal",),
    "equations": ("deepxde", "pina"),
    "triton": ("triton",),
}
"""The modules that each extra of pyproject.toml brings, by the names they are imported under."""


def missing_extra(who: str, extra: str) -> MissingExtraError:
    """The error that says how to install an extra."""
    return MissingExtraError(f"{who} needs the extra {extra!r}: pip install 'quadric[{extra}]'")


def require(extra: str, who: str) -> None:
    """Raises an error that names the extra if one of its modules is not installed."""
    if any(importlib.util.find_spec(module) is None for module in EXTRAS[extra]):
        raise missing_extra(who, extra)


def load_extra(module: str, who: str, extra: str = "train") -> Any:
    """Imports an optional module."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A module that is there but lacks one of its own parts is another mistake: say it as it is.
        if error.name != module.partition(".")[0]:
            raise
        raise missing_extra(who, extra) from None

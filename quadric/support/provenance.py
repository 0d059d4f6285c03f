"""Where a number comes from: versions, machine, command; and strict JSON to keep it in.

Every result file carries these, so that a number can be traced to what made it. Strict JSON: what
is not finite becomes null, as few readers outside Python understand NaN.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from quadric.support.writing import write_text


def versions(*distributions: str) -> dict[str, str | None]:
    """Versions of Python, Quadric, torch and further distributions; None for one not installed."""
    known: dict[str, str | None] = {"python": platform.python_version()}
    for name in ("quadric", "torch", *distributions):
        try:
            known[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            known[name] = None
    return known


def machine() -> dict[str, Any]:
    """The hardware that numbers of seconds and bytes depend on."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
    }


def stamp(*distributions: str) -> dict[str, Any]:
    """What a result file says of its origin: versions, machine, command."""
    return {"versions": versions(*distributions), "machine": machine(), "command": command()}


def peak_memory() -> int | None:
    """Bytes at most so far, of the GPU if one is used, else of this process."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    try:
        import resource
    except ImportError:  # a system that does not tell
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def command() -> str:
    """The command line of this process, to be pasted; the program by its name, not its path."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def finite(value: Any) -> Any:
    """A copy of plain data in which each float that is not finite is None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [finite(item) for item in value]
    return value


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write plain data as strict, readable JSON. A reader never sees half a file."""
    text = json.dumps(finite(data), indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else None

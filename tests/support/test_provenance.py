"""Result files: strict JSON, and what they say of their origin."""

from __future__ import annotations

import json
import math
import platform
import sys
from pathlib import Path

import pytest
import torch

from quadric.support import provenance


def test_versions() -> None:
    found = provenance.versions("pytest", "no-such-distribution")
    assert found["python"] == platform.python_version()
    assert found["torch"] == torch.__version__
    assert found["pytest"] == pytest.__version__
    assert found["no-such-distribution"] is None
    assert list(found)[:3] == ["python", "quadric", "torch"]


def test_machine_is_plain_data() -> None:
    machine = provenance.machine()
    assert json.loads(json.dumps(machine)) == machine
    assert machine["cores"] >= 1
    assert machine["threads"] == torch.get_num_threads()
    # A result file is public: it says what the machine is, not whose.
    assert platform.node() not in json.dumps(machine).split()


def test_peak_memory_is_in_bytes() -> None:
    peak = provenance.peak_memory()
    assert peak is not None
    assert 2**24 < peak < 2**40  # kilobytes would be below, torch alone takes more
    status = Path("/proc/self/status")
    if status.is_file() and not torch.cuda.is_available():
        (line,) = [x for x in status.read_text().splitlines() if x.startswith("VmHWM")]
        assert peak == pytest.approx(1024 * int(line.split()[1]), rel=0.05)


def test_command_has_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/quadric", "demo", "--seed", "3"])
    assert provenance.command() == "quadric demo --seed 3"
    # It can be pasted.
    monkeypatch.setattr("sys.argv", ["quadric", "compare", "my data.csv"])
    assert provenance.command() == "quadric compare 'my data.csv'"


def test_write_json_is_strict(tmp_path: Path) -> None:
    path = tmp_path / "new" / "result.json"
    data = {"a": math.nan, "b": [1.5, math.inf, {"c": -math.inf}], "d": "NaN", "e": (1, None)}
    provenance.write_json(path, data)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    read = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    assert read == {"a": None, "b": [1.5, None, {"c": None}], "d": "NaN", "e": [1, None]}
    assert [file.name for file in path.parent.iterdir()] == ["result.json"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    provenance.write_json(path, {"a": 1})
    with pytest.raises(TypeError, match="not JSON serializable"):
        provenance.write_json(path, {"a": object()})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": 1}

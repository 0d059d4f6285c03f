"""`quadric analyze`, `figures` and `report`, as a user calls them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quadric.cli.app import app
from tests.analysis.made import trained_runs


def call(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_runs(), tmp_path / "runs"))


def test_from_runs_to_figures_and_a_page(runs: Path, tmp_path: Path) -> None:
    code, out, _ = call(
        "analyze", *runs.iterdir(), "--pictures", 40, "--show", "0,7", "--json", tmp_path / "a.json"
    )
    assert code == 0
    assert "The claim that quadratic responses hold low frequencies" in out
    assert "What the network couples" in out
    assert len(json.loads((tmp_path / "a.json").read_text())) == 2
    made = json.loads((runs / "digits" / "analysis.json").read_text())
    assert made["samples"] == 40
    assert len(made["responses"]["pictures"]) == 2
    pictures = {path.name for path in (runs / "digits" / "analysis").glob("*.png")}
    assert pictures == {f"{n}-digits.png" for n in ("distribution", "responses", "frequencies")}
    (runs / "broken").mkdir()
    (runs / "broken" / "result.json").write_text("{")
    code, out, err = call("figures", runs, "--which", "efficiency,couplings", "-o", tmp_path / "f")
    assert code == 0
    assert err.startswith("up to 3 figures, about 2 seconds\n")  # two runs are analyzed
    assert "broken/result.json is not JSON" in err
    assert sorted(path.name for path in (tmp_path / "f").glob("*.pdf")) == [
        "couplings-law.pdf", "efficiency.pdf",
    ]  # fmt: skip
    code, out, err = call("report", runs, "-o", tmp_path / "page.html")
    assert code == 0
    assert f"2 runs, {(tmp_path / 'page.html').stat().st_size:,} bytes" in out
    assert err.startswith("a page of 2 runs, about a second\n")
    assert "broken/result.json is not JSON" in err
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("broken/result.json is not JSON") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("analyze", "."), "is not a run directory"),
        (("analyze", trained_runs() / "digits", "--show", "a"), "--show must be whole numbers"),
        (("figures", "nowhere"), "no such run: nowhere"),
        (("figures", trained_runs() / "digits", "--which", "pie"), "--which must be of"),
        (("report", "."), "no finished run in ."),
        (("report", trained_runs() / "digits", "-o", "no/where.html"), "no directory no"),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[object, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = call(*arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

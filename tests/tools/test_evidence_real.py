"""What says how estimators do on real tables."""

from __future__ import annotations

from typing import Any

import pytest

from quadric.errors import InputError
from quadric.models import create
from quadric.support.modules import count_parameters
from tests.tools.loading import load_tool


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    return load_tool("real_tables", monkeypatch)


@pytest.fixture
def real(tables: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    return load_tool("evidence_real", monkeypatch)


def test_no_table_both_chooses_and_judges(real: Any) -> None:
    chosen, judged = (
        {(t.package, t.file) for t in half} for half in (real.CHOOSING, real.HELD_BACK)
    )
    assert not chosen & judged
    assert len(real.TABLES) == len(chosen) + len(judged) >= 40


def test_a_table_whose_package_is_absent_says_what_installs_it(tables: Any) -> None:
    absent = tables.RealTable("none", "no_such_package", "a.csv", "y")
    with pytest.raises(InputError, match="pip install --no-deps --target DIR ISLP"):
        absent.load(None)


def test_a_cell_is_an_error_on_rows_that_were_not_learned(real: Any, tables: Any) -> None:
    measured = real.measure(None)("wine", 0, real.LINEAR_MODEL)
    assert (measured["rows"], measured["task"]) == (133, "classification")
    assert 0 < measured["error"] < 0.3  # a constant has 1
    rows = real.Rows(tables.TABLES["diabetes"], None, 0)
    assert not set(rows.learned) & set(rows.tested)
    mean = rows.truth[rows.tested].mean()
    assert rows.error(mean) == pytest.approx(1)


def test_other_networks_have_no_fewer_parameters(real: Any) -> None:
    def count(**options: Any) -> int:
        return count_parameters(create("mlp", seed=0, in_features=9, out_features=2, **options))

    ours = count(neuron="shared", hidden=(64, 64))
    found = real.as_large("glu", "classification", 9, 2)
    assert ours <= count(neuron="glu", hidden=found["hidden_layer_sizes"]) < 1.1 * ours


def test_ranks_and_median_gaps(real: Any) -> None:
    errors = [(1.0, 2.0), (1.0, 1.1), (3.0, 2.0), (1.0, 1.25), (1.0, 4.0)]
    found = [{"error": {real.OURS: a, "other": b}} for a, b in errors]
    assert real.ranks(found, [real.OURS, "other"]).mean(0).tolist() == [1.2, 1.8]
    assert real.gap(found, "other").startswith("\N{MINUS SIGN}20.0 % (")
    assert real.gap(found, "other").endswith(" to +50.0)")

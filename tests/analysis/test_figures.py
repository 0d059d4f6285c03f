"""Figures: what is drawn, how large, with which numbers beside it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from quadric.analysis import figures
from quadric.analysis.drawing import draw, numbers
from quadric.analysis.style import COLUMN, PAGE, line_styles, neuron_styles
from quadric.errors import InputError, InputTypeError
from quadric.runs.reading import read_runs
from tests.analysis.made import (
    diverged,
    law_result,
    picture_analysis,
    result,
    run_directory,
    table_analysis,
)

pytest.importorskip("matplotlib")


def many() -> list[dict[str, Any]]:
    """Fifty runs: seeds, sizes, neurons, two data sets, one that diverged."""
    runs = [
        result(neuron, seed, width)
        for neuron in ("linear", "eigen", "shared", "fan")
        for seed in range(3)
        for width in (0.5, 1, 2, 4)
    ]
    return [*runs, law_result(), diverged()]


def lines(axis: Any) -> dict[str, list[tuple[float, float]]]:
    """The points of each named line with error bars."""
    return {
        str(bars.get_label()): list(map(tuple, bars.lines[0].get_xydata()))
        for bars in axis.containers
        if bars.lines[0] is not None
    }


def test_efficiency_has_a_line_for_each_neuron() -> None:
    figure = figures.efficiency(many())
    assert figure.get_figwidth() == COLUMN
    params, macs, *law = figure.axes
    assert set(lines(params)) == {"linear", "eigen[9]", "shared", "fan"}
    assert lines(params)["eigen[9]"] == [(500, 91), (1000, 91), (2000, 91), (4000, 91)]
    assert lines(macs)["eigen[9]"][0] == (4500, 91)
    assert [axis.get_xlabel() for axis in figure.axes[:2]] == ["parameters", "MACs per input"]
    assert params.get_ylabel() == "test accuracy (%)"
    assert law[0].get_ylabel() == "test RMSE (N)"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "kervolution: diverged" in labels
    assert not any(axis.get_legend() for axis in figure.axes)  # no legend over data


def test_error_bars_are_deviations_over_seeds() -> None:
    figure = figures.efficiency([result(seed=seed) for seed in range(3)])
    (bars,) = figure.axes[0].containers
    (segment,) = bars.lines[2][0].get_segments()
    assert segment[:, 1].tolist() == pytest.approx([90, 92])


def test_a_result_without_macs_keeps_its_other_panel() -> None:
    figure = figures.efficiency([result(macs=None)])
    assert lines(figure.axes[0])
    assert "no MACs per input" in figure.axes[1].texts[0].get_text()


def test_neurons_shows_every_seed_and_what_diverged() -> None:
    figure = figures.neurons(many())
    assert figure.get_figwidth() == PAGE
    score, params, _ = figure.axes[:3]
    names = [label.get_text() for label in score.get_yticklabels()]
    assert len(names) == 17
    assert "digits_cnn width 0.5  shared" in names
    assert [text.get_text() for text in score.texts] == ["× 1 of 1 diverged"]
    assert sorted({round(bar.get_width()) for bar in params.patches}) == [500, 1000, 2000, 4000]


def test_stability_crosses_out_what_diverged() -> None:
    figure = figures.stability([result(), diverged()])
    loss = figure.axes[1]
    crosses = [line for line in loss.lines if line.get_marker() == "x"]
    assert [line.get_xydata().tolist() for line in crosses] == [[[1, 99]]]
    assert loss.get_yscale() == "log"
    with pytest.raises(InputError, match="no run has recorded its epochs"):
        figures.stability([law_result()])


def test_laws_leaves_out_what_is_no_error() -> None:
    figure = figures.laws([law_result("linear"), law_result(), result()])
    (axis,) = figure.axes
    assert axis.get_title(loc="left") == "law:lorentz"
    assert set(lines(axis)) == {"linear", "shared"}
    with pytest.raises(InputError, match="no run has learned a law or a table"):
        figures.laws([result()])


def test_distribution_and_frequencies_by_depth() -> None:
    figure = figures.distribution(picture_analysis())
    assert [axis.get_ylabel() for axis in figure.axes] == [
        "linear weights", "quadratic parameters", "true eigenvalues",
    ]  # fmt: skip
    assert [label.get_text() for label in figure.axes[-1].get_xticklabels()] == ["0", "2", "4"]
    shares = figures.frequencies(picture_analysis()).axes[0]
    assert "cycles/pixel" in shares.get_ylabel()
    assert shares.get_title(loc="left").startswith("The claim that quadratic responses")
    with pytest.raises(InputError, match="holds no frequencies"):
        figures.frequencies(table_analysis())
    with pytest.raises(InputTypeError, match="takes an analysis, got NoneType"):
        figures.distribution(read_runs([result()])[0][0])


def test_responses_side_by_side() -> None:
    figure = figures.responses(picture_analysis())
    grid = figure.axes[:-1]  # the last is the bar of colors
    assert len(grid) == 3 * (1 + 2 * 2)
    assert all(len(axis.images) == 1 for axis in grid)
    assert grid[2].get_title(loc="left").strip() == "quadratic"


def test_runs_of_one_name_have_figures_of_their_own(tmp_path: Path) -> None:
    found = [run_directory(tmp_path / x / "run", result(seed=i), picture_analysis())
             for i, x in enumerate("ab")]  # fmt: skip
    files, _ = draw(read_runs(found)[0], ["distribution"], tmp_path / "figures")
    assert {file.stem for file in files} == {"distribution-run", "distribution-run-2"}


def test_couplings_as_heat_maps() -> None:
    figure = figures.couplings(table_analysis())
    forms, whole, bar = figure.axes
    assert [label.get_text() for label in forms.get_yticklabels()][1] == "E (V m⁻¹)"
    assert whole.get_title(loc="left") == "by the whole network"
    assert bar.get_ylabel() == "force (N) per deviation of both columns"


def test_files_fit_for_a_paper(tmp_path: Path) -> None:
    runs, _ = read_runs(
        [*(result(n, s) for n in ("linear", "eigen") for s in (0, 1)), law_result()]
    )
    analyzed, _ = read_runs([result() | {"analysis": picture_analysis()}])
    which = ["efficiency", "responses", "couplings"]
    files, notes = draw([*runs, *analyzed], which, tmp_path / "figures", latex=True)
    stems = {file.stem for file in files}
    assert stems == {"efficiency", "responses-run_1"}
    assert notes == ["couplings: the analysis holds no couplings: analyze a network on a table"]
    for stem in stems:
        pdf = (tmp_path / "figures" / f"{stem}.pdf").read_bytes()
        assert b"/FontFile2" in pdf, stem  # the font is inside, as outlines
        assert b"/Type3" not in pdf
        assert (tmp_path / "figures" / f"{stem}.png").stat().st_size > 5000
        text = (tmp_path / "figures" / f"{stem}.tex").read_text()
        assert text.count(r"\\") > 1
    with (tmp_path / "figures" / "efficiency.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    first = next(row for row in rows if row["neuron"] == "eigen[9]")
    assert (first["parameters"], float(first["score"]), first["seeds"]) == ("1000", 90.5, "2")


def test_what_cannot_be_drawn(tmp_path: Path) -> None:
    runs, _ = read_runs([result()])
    with pytest.raises(InputError, match=r"--which must be of efficiency, .*, got 'pie'"):
        draw(runs, ["pie"], tmp_path)
    with pytest.raises(InputError, match="no figure could be drawn: distribution: no run has been"):
        draw(runs, ["distribution"], tmp_path)


def test_names_from_files_are_text(tmp_path: Path) -> None:
    strange = result(dataset=r"$\frac{$", command="x")
    runs, _ = read_runs([strange])
    draw(runs, ["efficiency"], tmp_path, latex=True)
    assert r"\$\textbackslash frac\{\$" in (tmp_path / "efficiency.tex").read_text()


@pytest.mark.parametrize("name", figures.OF_ANALYSES)
def test_every_figure_of_an_analysis_has_its_numbers(name: str) -> None:
    analysis = table_analysis() if name == "couplings" else picture_analysis()
    (run,), _ = read_runs(result() | {"analysis": analysis})
    text = numbers(name, run).to_csv(index=False)
    head = {
        "distribution": "layer,name,what,count,mean,std,min,5%,25%,50%,75%,95%,max",
        "couplings": "column,with,by quadratic forms,by the whole network,unit,factor of the "
        "product,unit of the factor",
    }.get(name, "layer,name,quadratic share,correlation,low linear,std linear,low quadratic,std "
          "quadratic,difference,half width 95%")  # fmt: skip
    assert text.splitlines()[0] == head
    assert len(text.splitlines()) > 3


def test_the_numbers_of_laws_are_errors_alone() -> None:
    runs, _ = read_runs([result(), law_result()])
    assert numbers("laws", runs)["data set"].tolist() == ["law:lorentz"]
    assert len(numbers("efficiency", runs)) == 2


def test_curves_as_numbers() -> None:
    runs, _ = read_runs([diverged()])
    table = numbers("stability", runs)
    assert table[table["curve"] == "test loss"][["epoch", "value"]].to_csv(index=False) == (
        "epoch,value\n1,99\n2,\n"
    )


def test_styles_tell_lines_apart() -> None:
    found = line_styles([("eigen", "eigen[9]"), ("eigen", "eigen[3]"), ("mine", "mine")])
    assert found["eigen[9]"]["color"] == found["eigen[3]"]["color"]
    assert found["eigen[9]"]["linestyle"] != found["eigen[3]"]["linestyle"]
    assert found["mine"]["color"] != found["eigen[9]"]["color"]
    everything = neuron_styles([*(f"n{i}" for i in range(10)), "linear"])
    assert len(set(everything.values())) == 11

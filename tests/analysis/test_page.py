"""The page as a file: what is in it, how large it is, and that nothing in it can do harm."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from quadric import analysis
from quadric.errors import InputError
from tests.analysis.made import diverged, law_result, picture_analysis, result, table_analysis

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\" on='3' &amp; @DATA@"


def content(page: str) -> dict[str, list[dict[str, object]]]:
    """What a browser reads out of the page's block of data."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    found: dict[str, list[dict[str, object]]] = json.loads(text)
    return found


def test_everything_from_files_is_text(tmp_path: Path) -> None:
    table = table_analysis() | {"recipe": EVIL}
    table["couplings"] = table["couplings"] | {"names": [EVIL] * 5, "target": EVIL}
    evil = result(EVIL, dataset=EVIL, model=EVIL, recipe=EVIL, command=EVIL, analysis=table)
    evil["settings"] = {EVIL: EVIL}
    evil["versions"] = {EVIL: EVIL}
    path = analysis.report([evil], tmp_path / "page.html", title=EVIL, notes=[EVIL])
    page = path.read_text(encoding="utf-8")
    assert page.count("<script") == 2  # the data and our own
    assert "onerror=alert(2)>" not in page
    assert "<title>&lt;/script&gt;" in page
    data = content(page)
    assert data["runs"][0]["command"] == EVIL
    assert data["notes"] == [EVIL]
    script = page[page.rindex("<script>") :]
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in script


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    page = analysis.report([result()], tmp_path / "page.html").read_text(encoding="utf-8")
    assert not re.findall(r"(?:src|href)=[\"'](?!#)", page)
    assert "default-src 'none'" in page
    addresses = set(re.findall(r"https?://[\w./]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of SVG, never fetched


def test_what_the_page_knows_of_a_run(tmp_path: Path) -> None:
    runs = [result(analysis=picture_analysis()), law_result(analysis=table_analysis()), diverged()]
    page = analysis.report(runs, tmp_path / "page.html").read_text(encoding="utf-8")
    data = content(page)
    assert data["summary"] == "3 runs on 2 data sets, 1 diverged"
    one, law, lost = data["runs"]
    assert one["score"] == 90
    assert one["share"] == pytest.approx(0.2)
    assert 'name: "digits"\n' in str(one["recipeText"])
    assert len(one["curves"]["test_loss"]) == 5  # type: ignore[call-overload,index]
    found = one["analysis"]
    assert [each["title"] for each in found["distributions"]] == [  # type: ignore[index]
        "linear weights", "quadratic parameters", "true eigenvalues", "effective rank",
    ]  # fmt: skip
    assert len(found["responses"]["layers"]) == 2  # type: ignore[index]
    coupled = law["analysis"]["couplings"]  # type: ignore[index]
    assert "force (N) per standard deviation" in coupled["caption"]
    assert len(coupled["pairs"]) == 10
    assert lost["diverged"] is True
    assert lost["message"] == "training diverged: the loss is nan at step 2"
    assert [group["mean"] for group in data["groups"]] == [90, None, 0.5]


def test_a_run_without_a_score_has_not_diverged(tmp_path: Path) -> None:
    runs = [result(test_accuracy=None), diverged()]
    for count, words in ((2, "2 runs on 1 data set, 1 diverged"), (1, "1 run on 1 data set")):
        page = analysis.report(runs[:count], tmp_path / "page.html").read_text()
        assert content(page)["summary"] == words


def test_a_hundred_runs_are_less_than_12_megabytes(tmp_path: Path) -> None:
    epochs = [dict(record, epoch=i) for i in range(250) for record in result()["epochs"][:1]]
    pictures = picture_analysis()
    # As large as analyses of pictures get: three pictures, four layers, 48 pixels a side.
    (small,) = pictures["responses"]["layers"][0]["linear"][:1]
    large = small | {"height": 48, "width": 48, "bytes": "A" * (48 * 48 * 4 // 3)}
    layer = {"name": "layer1.0.conv1", "neuron": 0, "linear": [large] * 3, "quadratic": [large] * 3}
    shown = {"pictures": [large] * 3, "layers": [layer] * 4}
    full = pictures | {"layers": pictures["layers"] * 7, "responses": shown}
    runs = [result(seed=i, epochs=epochs, analysis=full) for i in range(100)]
    path = analysis.report(runs, tmp_path / "page.html")
    assert path.stat().st_size < 12e6


def test_no_run_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no finished run"):
        analysis.report([], tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []

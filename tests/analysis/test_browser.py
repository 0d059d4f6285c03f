"""The page in a real browser: headless Chromium opens it from disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quadric import analysis
from quadric.analysis.couplings import ranked
from tests.analysis.made import diverged, law_result, picture_analysis, result, table_analysis

webdriver = pytest.importorskip("selenium.webdriver")
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), "")
DRIVER = shutil.which("chromedriver") or ""
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no Chromium and chromedriver on this machine"
)

FLAGS = """--headless=new --no-sandbox --disable-gpu --no-first-run --disable-sync
    --disable-background-networking --disable-component-update --disable-dev-shm-usage"""
EVIL = "<script>document.title='broken'</script>\"'><b>x</b>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(20)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred runs, some with analyses, one that diverged, one with an evil name."""
    runs: list[Any] = [
        result(neuron, seed, width)
        for neuron in ("linear", "eigen", "shared")
        for seed in range(8)
        for width in (0.5, 1.0, 2.0, 4.0)
    ]
    runs[0]["analysis"] = picture_analysis()
    runs += [law_result(analysis=table_analysis()), diverged(), diverged(seed=1)]
    runs.append(result(EVIL, 9, model=EVIL, dataset=EVIL, command=EVIL, settings={EVIL: EVIL}))
    assert len(runs) == 100
    return analysis.report(runs, tmp_path_factory.mktemp("page") / "page.html", title=EVIL)


@pytest.fixture
def opened(browser: Any, page: Path) -> Iterator[Any]:
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.set_window_size(1400, 1000)
    browser.get(page.as_uri())
    yield browser
    assert browser.get_log("browser") == []  # no error, no warning


def all_of(browser: Any, selector: str) -> list[Any]:
    return list(browser.find_elements("css selector", selector))


def one(browser: Any, selector: str) -> Any:
    return browser.find_element("css selector", selector)


def column(browser: Any, name: str) -> list[str]:
    heads = [head.text.strip(" ↓↑") for head in all_of(browser, "thead th")]
    place = heads.index(name) + 1
    cells = f"return [...document.querySelectorAll('tbody td:nth-child({place})')]"
    return list(browser.execute_script(cells + ".map((cell) => cell.textContent)"))


def choose(browser: Any, select: str, text: str) -> None:
    (option,) = [o for o in all_of(browser, f"#{select} option") if o.text == text]
    option.click()


def test_runs_are_sorted_filtered_and_drawn(opened: Any) -> None:
    assert float(one(opened, "html").get_attribute("data-ready")) > 0  # milliseconds
    assert one(opened, "#count").text == "100 of 100 runs"
    assert "100 runs on 3 data sets, 2 diverged" in one(opened, "#summary").text
    for reverse in (True, False):
        scores = column(opened, "score")
        assert scores[-2:] == ["× diverged"] * 2  # what is missing comes last
        numbers = [float(text) for text in scores[:-2]]
        assert numbers == sorted(numbers, reverse=reverse)
        one(opened, "th button[data-key=score]").click()
    choose(opened, "by-neuron", "eigen")
    assert set(column(opened, "neuron")) == {"eigen[9]"}
    assert one(opened, "#count").text == "32 of 100 runs"
    assert len(all_of(opened, "#plots .point")) == 32
    choose(opened, "by-neuron", "all (5)")
    one(opened, "#by-name").send_keys("run 97")
    assert column(opened, "run") == ["run 97"]
    one(opened, "#by-name").clear()
    choose(opened, "by-dataset", "digits")
    labels = [text.text for text in all_of(opened, "#plots svg .label")]
    assert labels == ["parameters", "test accuracy (%)"]
    ticks = [text.text for text in all_of(opened, "#plots svg text")]
    one(opened, "#axis input[value=macs]").click()
    assert all_of(opened, "#plots svg .label")[0].text == "MACs per input"
    assert [text.text for text in all_of(opened, "#plots svg text")] != ticks


def test_a_point_shows_details_and_opens_its_run(opened: Any) -> None:
    choose(opened, "by-dataset", "law:lorentz")
    (point,) = all_of(opened, "#plots .point")
    webdriver.ActionChains(opened).move_to_element(point).perform()
    details = "mlp, shared, seed 0\ntest RMSE (N): 0.5\n1,000 parameters, 9,000 MACs"
    assert details in one(opened, "#tip").text
    point.click()
    strongest = ranked(table_analysis()["couplings"])[0]
    text = one(opened, "#couplings ol li").text
    assert text.startswith(strongest["columns"][0])
    assert f"{strongest['coefficient']:.4g}" in text
    one(opened, "#close").click()
    assert not one(opened, "#run").is_displayed()
    choose(opened, "by-dataset", "digits")
    one(opened, "#by-name").send_keys("run 1")
    first = next(p for p in all_of(opened, "#plots .point") if p.get_attribute("data-run") == "0")
    opened.execute_script("arguments[0].dispatchEvent(new MouseEvent('click'))", first)
    curves = all_of(opened, "#curves path.line")
    assert len(curves) == 4  # score and loss, training and test
    assert all(len(curve.get_attribute("d")) > 20 for curve in curves)
    assert len(all_of(opened, "#distributions svg")) == 4
    maps = all_of(opened, "#responses canvas")
    assert len(maps) == 3 * (1 + 2 * 2)
    pixels = """const [map] = arguments, context = map.getContext('2d');
        return new Set(context.getImageData(0, 0, map.width, map.height).data).size"""
    assert all(opened.execute_script(pixels, each) > 5 for each in maps)
    command = one(opened, "#run-body pre").text
    button = one(opened, "button.copy")
    button.click()
    wait(lambda: button.text == "Copied")
    one(opened, "#close").click()
    one(opened, "#by-name").clear()
    one(opened, "#by-name").send_keys(webdriver.Keys.CONTROL, "v")  # what a user would do with it
    assert one(opened, "#by-name").get_property("value") == command


def test_a_run_that_diverged_and_one_with_an_evil_name(opened: Any) -> None:
    choose(opened, "by-neuron", "kervolution")
    assert len(all_of(opened, "#plots .point.lost")) == 2
    one(opened, "tbody button").click()
    assert "training diverged: the loss is nan at step 2" in one(opened, "#run-body").text
    assert len(all_of(opened, "#curves .lost")) == 2
    one(opened, "#close").click()
    assert (one(opened, "h1").text, opened.title) == (EVIL, EVIL)
    choose(opened, "by-neuron", EVIL)
    assert one(opened, "#plots figcaption").text == EVIL
    assert EVIL in one(opened, "#plots .point").get_attribute("aria-label")
    one(opened, "tbody button").click()
    assert one(opened, "#run-body pre").text == EVIL
    assert all_of(opened, "main b, #run b") == []
    assert len(all_of(opened, "script")) == 2


def test_everything_is_reachable_by_keyboard(opened: Any) -> None:
    def press(*keys: str) -> Any:
        webdriver.ActionChains(opened).send_keys(*keys).perform()
        return opened.switch_to.active_element

    keys = webdriver.Keys
    choose(opened, "by-dataset", "digits")
    seen = []
    for _ in range(12):
        focused = press(keys.TAB)
        seen.append(focused.get_attribute("id") or focused.get_attribute("class") or "")
        if "point" in seen[-1]:
            break
    assert "point" in seen[-1], seen
    first = focused.get_attribute("data-run")
    assert one(opened, "#tip").is_displayed()
    second = press(keys.ARROW_RIGHT)
    assert second.get_attribute("data-run") != first
    press(keys.ENTER)
    assert one(opened, "#run").is_displayed()
    press(keys.ESCAPE)
    assert not one(opened, "#run").is_displayed()
    assert opened.switch_to.active_element.get_attribute("data-run") == second.get_attribute(
        "data-run"
    )


def test_the_page_fits_a_phone_in_both_themes(opened: Any) -> None:
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for theme in ("light", "dark"):
        shown = f"return document.documentElement.dataset.theme === '{theme}'"
        if not opened.execute_script(shown):
            one(opened, "#theme").click()
        assert opened.execute_script(shown)
        wide = opened.execute_script("return document.documentElement.scrollWidth")
        assert wide <= 390, "the page must not scroll sideways"
    opened.execute_script("document.querySelector('tbody button').click()")
    box = one(opened, "#run").rect
    assert 0 <= box["x"] <= box["x"] + box["width"] <= 390


def wait(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(None, seconds, 0.05).until(lambda _: condition())

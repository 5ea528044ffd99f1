"""The report in a real browser: figures, hovering, light and dark, and no request but the page's.

The page is a few megabytes of scripts, and starting a browser takes seconds: `make test-all` runs
this, and `test_report.py` proves the page's structure in `make test`.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.maintenance.consumers import record_progress
from lance_stream.spark.sink.reports import SinkCommit
from tests.browser.chromium import chromium, in_scheme, opened_browser
from tests.monitoring.test_report import SCHEMA, hostile, rows

pytestmark = [pytest.mark.nightly, pytest.mark.slow]

SECONDS = 30


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if chromium() is None:
        if os.environ.get("CI") == "true":
            pytest.fail("there is no Chromium: python scripts/install_servers.py .servers chromium")
        pytest.skip("there is no Chromium: see scripts/install_servers.py")
    with opened_browser() as program:
        yield program


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    ds = lance_stream.create_dataset(tmp_path_factory.mktemp("t") / "t", SCHEMA)
    ds = ds.append(rows(*range(20))).upsert(rows(18, 19, 20, x="b"), on="id")
    ds = ds.delete("id < 5").compact().append(rows(30))
    record_progress(ds.table.refs, "warehouse", 3)
    return ds


def opened(browser: Any, page: Path) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(page.as_uri())
    drawn = "return document.querySelectorAll('.js-plotly-plot .main-svg').length"
    cards = "return document.querySelectorAll('.card').length"
    WebDriverWait(browser, SECONDS).until(
        lambda it: it.execute_script(drawn) >= it.execute_script(cards) > 5
    )


def requested(browser: Any) -> list[str]:
    """Return what the browser asked for since it was last asked."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]


def color_of(browser: Any, selector: str, name: str) -> str:
    color: str = browser.execute_script(
        "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]",
        selector,
        name,
    )
    return color


def test_figures_draw_without_errors_or_requests(browser: Any, ds: Dataset, tmp_path: Path) -> None:
    """Only a browser shows whether the script runs under the page's policy, and whether it loads
    anything.
    """
    commits = [SinkCommit(1, "a", version=2, seconds={"write": 0.5, "commit": 0.25})]
    file = ds.report(commits=commits).save(tmp_path / "report.html")
    opened(browser, file)
    assert browser.get_log("browser") == []
    assert [text for text in requested(browser) if not text.startswith(("data:", "blob:"))] == [
        file.as_uri()
    ]
    bars = "return document.querySelectorAll('#figure-changes .bars .point').length"
    assert browser.execute_script(bars) >= ds.version


def test_hovering_shows_values_of_versions(browser: Any, ds: Dataset, tmp_path: Path) -> None:
    """Exact numbers are only visible on hovering."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    opened(browser, ds.report().save(tmp_path / "report.html"))
    plot = browser.find_element(By.CSS_SELECTOR, "#figure-changes .nsewdrag")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    width = plot.size["width"]
    # the axis shows version 1 - 0.6 to n + 0.6
    version_3 = width * (3 - 0.4) / (ds.version + 0.2) - width / 2
    ActionChains(browser).move_to_element_with_offset(plot, int(version_3), 5).perform()
    layer = (By.CSS_SELECTOR, "#figure-changes .hoverlayer")
    WebDriverWait(browser, SECONDS).until(lambda it: it.find_element(*layer).text)
    text = browser.find_element(*layer).text
    assert "version 3" in text
    assert "1 inserted" in text
    assert "2 updated" in text
    assert "0 deleted" in text


def test_reports_follow_the_dark_mode(browser: Any, ds: Dataset, tmp_path: Path) -> None:
    """Plotly sets colours itself, and they have to follow while the page is open."""
    from selenium.webdriver.support.ui import WebDriverWait

    file = ds.report().save(tmp_path / "report.html")
    seen = {}
    for scheme in ("light", "dark"):
        in_scheme(browser, scheme)
        opened(browser, file)
        seen[scheme] = (
            color_of(browser, "body", "backgroundColor"),
            color_of(browser, "#figure-rows .xtick text", "fill"),
            color_of(browser, "#figure-rows .js-line", "stroke"),
        )
    assert all(one != other for one, other in zip(*seen.values(), strict=True))
    in_scheme(browser, "light")  # while the page is open
    WebDriverWait(browser, SECONDS).until(
        lambda it: color_of(it, "#figure-rows .js-line", "stroke") == seen["light"][2]
    )


def test_the_axis_can_show_time(browser: Any, ds: Dataset, tmp_path: Path) -> None:
    """Versions are not evenly spaced in time."""
    from selenium.webdriver.common.by import By

    opened(browser, ds.report().save(tmp_path / "report.html"))
    browser.find_element(By.CSS_SELECTOR, "input[value=time]").click()
    kind = "return document.getElementById('figure-rows').layout.xaxis.type"
    assert browser.execute_script(kind) == "date"
    assert browser.get_log("browser") == []


def test_hostile_names_run_nothing(browser: Any, ds: Dataset, tmp_path: Path) -> None:
    """A real parser decides what is markup, not the assertions of the other tests."""
    from selenium.common.exceptions import NoAlertPresentException

    opened(browser, hostile(ds).save(tmp_path / "report.html"))
    with pytest.raises(NoAlertPresentException):
        _ = browser.switch_to.alert.text
    assert browser.get_log("browser") == []  # a blocked script would be an error here
    assert "<script>alert(1)" in browser.find_element("tag name", "h1").text
    assert browser.execute_script("return document.querySelectorAll('a, img').length") == 0


def test_narrow_windows_do_not_scroll_sideways(browser: Any, ds: Dataset, tmp_path: Path) -> None:
    """Long names would push the figures out of a small window."""
    browser.set_window_size(500, 800)
    try:
        opened(browser, hostile(ds).save(tmp_path / "report.html"))
        widths = "return [document.documentElement.scrollWidth, window.innerWidth]"
        wide, window = browser.execute_script(widths)
        assert wide <= window
    finally:
        browser.set_window_size(1240, 900)

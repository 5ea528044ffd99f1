"""The page in a real browser: figures, search, keyboard, width, light and dark."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples.pipeline import figures
from examples.pipeline.page import PageServer
from examples.pipeline.settings import Settings
from tests.browser.chromium import chromium, in_scheme, opened_browser
from tests.examples.pipeline.tables import make_table, settings_of
from tests.servers.server import ask, free_port

pytestmark = [pytest.mark.nightly, pytest.mark.slow, pytest.mark.oracle]

ROOT = Path(__file__).parents[3]
SECONDS = 30
WIDTH, HEIGHT = 1240, 900
UNKNOWN = "\N{EN DASH}"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    settings = settings_of(tmp_path_factory.mktemp("pipeline"))
    make_table(settings)
    return settings


@pytest.fixture(scope="module")
def server(settings: Settings) -> Iterator[PageServer]:
    with PageServer(settings) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def one_browser() -> Iterator[Any]:
    if chromium() is None:
        if os.environ.get("CI") == "true":
            pytest.fail("there is no Chromium: python scripts/install_servers.py .servers chromium")
        pytest.skip("there is no Chromium: see scripts/install_servers.py")
    with opened_browser(WIDTH, HEIGHT) as program:
        yield program


@pytest.fixture
def browser(one_browser: Any, server: PageServer, settings: Settings) -> Any:
    show(settings, rows_table=610)
    one_browser.set_window_size(WIDTH, HEIGHT)
    one_browser.get_log("browser")
    one_browser.get(server.url)
    wait_for(one_browser, lambda: text_of(one_browser, "#rows_table") == "610")
    return one_browser


def show(settings: Settings, **now: Any) -> None:
    """Write figures as `watch` does."""
    fresh = {"count": 12, "p50": 0.5, "p95": 1.25, "max": 2.0}
    point = {"at": time.time(), "rows_database": 612, "kafka_lag": 3, "wal_lag_bytes": 12345}
    point |= {"changes_per_second": 50.2, "fresh_p50": 0.5, "fresh_p95": 1.25, **now}
    figures.write(
        settings.figures("watch"),
        {
            "now": point,
            "points": [{**point, "kafka_lag": lag} for lag in (0, 5, None, 3)],
            "version": 1234,
            "coverage": [
                {
                    "name": "body_idx",
                    "kind": "INVERTED",
                    "columns": ["body"],
                    "rows_unindexed": 10,
                    "fraction": 0.98361,
                }
            ],
            "changes": {"total": 98765},
            "fresh": {"recent": fresh, "all": fresh},
            "embedded": fresh,
            "found": {"words": fresh, "neighbours": fresh},
            "stages": {"read by Debezium": 0.025},
            "parts": {
                "sink": {"state": "running", "restarts": 0},
                "kafka": {"state": "down", "restarts": 1},
            },
        },
    )


def wait_for(browser: Any, is_there: Callable[[], bool]) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, SECONDS).until(lambda _: is_there())


def text_of(browser: Any, selector: str) -> str:
    text: str = browser.execute_script(
        "return document.querySelector(arguments[0]).textContent", selector
    )
    return text


def results(browser: Any) -> list[str]:
    texts: list[str] = browser.execute_script(
        "return [...document.querySelectorAll('#results li')].map((each) => each.textContent)"
    )
    return texts


def search(browser: Any, text: str) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    box = browser.find_element(By.ID, "text")
    box.clear()
    box.send_keys(text, Keys.ENTER)


def test_figures_follow_the_measurements(browser: Any, settings: Settings) -> None:
    """Only a browser shows whether the script puts each number into its place, and updates it."""
    assert text_of(browser, "#rows_database") == "612"
    assert text_of(browser, "#of_table") == "version 1,234"
    assert text_of(browser, "#rate") == "50.2"
    assert text_of(browser, "#p95") == "1.25 s"
    assert text_of(browser, "#lag") == "3 records"
    assert text_of(browser, "#coverage") == "bodyINVERTED98.4 %10"
    assert text_of(browser, "#parts tr:nth-child(2)") == "kafkadown1"
    assert text_of(browser, "#stages") == "read by Debezium0.03 s"
    assert text_of(browser, "#state") == "kafka is not running"
    assert len(browser.execute_script("return document.querySelectorAll('svg path')")) == 6
    show(settings, rows_table=700, kafka_lag=None)
    wait_for(browser, lambda: text_of(browser, "#rows_table") == "700")
    assert text_of(browser, "#lag") == UNKNOWN
    assert browser.get_log("browser") == []


def test_old_figures_are_marked_as_old(browser: Any, settings: Settings) -> None:
    """Numbers of a stopped watcher would look current."""
    path = settings.figures("watch")
    path.write_text(json.dumps({**figures.read(path), "written_at": time.time() - 100}))
    wait_for(browser, lambda: "s old" in text_of(browser, "#state"))


def test_results_are_escaped_and_highlighted(browser: Any) -> None:
    """Rows contain arbitrary text, including markup."""
    search(browser, "zebra")
    wait_for(browser, lambda: len(results(browser)) == 10)
    assert "<b>Zebra</b> &" in results(browser)[0]
    marked = "return [...document.querySelectorAll('#results mark')].map((it) => it.textContent)"
    assert set(browser.execute_script(marked)) == {"Zebra"}
    assert text_of(browser, "#said").startswith("The best 10 rows in ")


def test_neighbour_search_can_be_chosen(browser: Any) -> None:
    """The choice must reach the server, and there are no words to mark."""
    from selenium.webdriver.common.by import By

    search(browser, "headsets, bluetooth timeouts")
    wait_for(browser, lambda: text_of(browser, "#said") != "")
    browser.find_element(By.CSS_SELECTOR, "input[value=neighbours]").click()
    wait_for(browser, lambda: "distance" in "".join(results(browser)))
    assert "headset cannot be paired" in results(browser)[0]
    assert browser.execute_script("return document.querySelectorAll('mark').length") == 0


def test_empty_results_and_errors_are_announced(browser: Any) -> None:
    """A page that stays silent looks broken."""
    search(browser, "nowhereatall")
    wait_for(browser, lambda: text_of(browser, "#said").startswith("No row in "))
    browser.execute_script("document.querySelector('input[name=by]').value = 'magic'")
    search(browser, "router")
    wait_for(browser, lambda: "by is words or neighbours" in text_of(browser, "#said"))


def test_the_keyboard_reaches_all_controls(browser: Any) -> None:
    """Focus must be visible and inputs need labels, which accessibility rules demand."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    reached = []
    for _ in range(8):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        active = browser.switch_to.active_element
        outline = "return getComputedStyle(arguments[0]).outlineStyle"
        assert browser.execute_script(outline, active) == "solid"
        reached.append(active.get_attribute("id") or active.tag_name)
    assert reached[0] == "a"  # to the search
    assert "text" in reached
    assert "again" in reached
    assert "button" in reached
    name = "(it) => it.labels.length || it.ariaLabel"
    named = f"return [...document.querySelectorAll('input')].map({name})"
    assert all(browser.execute_script(named))
    assert browser.find_element(By.TAG_NAME, "html").get_attribute("lang") == "en"


@pytest.mark.parametrize("width", [360, 768, 1600])
def test_nothing_is_wider_than_the_window(browser: Any, width: int) -> None:
    """Sideways scrolling makes a page unusable on a phone."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False},
    )
    try:
        search(browser, "router")
        wait_for(browser, lambda: len(results(browser)) == 10)
        seen = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert seen == [width, width]


CONTRAST = """
const channel = (value) => value <= .03928 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4;
const light = (text) => {
  const [red, green, blue] = text.match(/[\\d.]+/g).map((each) => channel(each / 255));
  return .2126 * red + .7152 * green + .0722 * blue;
};
const under = (node) => {
  const color = getComputedStyle(node).backgroundColor;
  return color === "rgba(0, 0, 0, 0)" ? under(node.parentElement) : color;
};
const bad = [];
for (const node of document.querySelectorAll("h1, h2, p, small, td, th, label, button, footer")) {
  if (!node.textContent.trim() || !node.checkVisibility()) continue;
  const both = [light(getComputedStyle(node).color), light(under(node))];
  const ratio = (Math.max(...both) + .05) / (Math.min(...both) + .05);
  if (ratio < 4.5) bad.push([node.tagName, node.id, node.textContent]);
}
return bad;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_suffices_in_both_schemes(browser: Any, scheme: str) -> None:
    """The required contrast must hold in both colour schemes."""
    in_scheme(browser, scheme)
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(246, 247, 248)") == (scheme == "light")
    search(browser, "router")
    wait_for(browser, lambda: len(results(browser)) == 10)
    assert browser.execute_script(CONTRAST) == []


def test_the_page_reports_a_killed_server(one_browser: Any, tmp_path: Path) -> None:
    """The page polls, and must not go on showing old numbers."""
    settings = replace(settings_of(tmp_path), page_port=str(free_port()))
    variables = {**os.environ, **settings.as_environment(), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "examples.pipeline.page"]
    with subprocess.Popen(command, env=variables) as process:
        try:
            wait_for(one_browser, lambda: ask("GET", url_of(settings)) == 200)
            one_browser.get(url_of(settings))
            wait_for(one_browser, lambda: text_of(one_browser, "#state") == "no figures yet")
        finally:
            process.kill()
    wait_for(one_browser, lambda: "does not answer" in text_of(one_browser, "#state"))
    search(one_browser, "router")
    wait_for(one_browser, lambda: "does not answer" in text_of(one_browser, "#said"))


def url_of(settings: Settings) -> str:
    return f"http://127.0.0.1:{settings.page_port}/"

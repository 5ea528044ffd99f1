"""A headless Chromium that opens files and pages of this machine, and reaches nothing else."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def chromium() -> tuple[str, str] | None:
    """Return the paths of Chromium and its driver; None if they are not installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


@contextmanager
def opened_browser(width: int = 1240, height: int = 900) -> Iterator[Any]:
    """Start a browser with a profile of its own, and end it after the body."""
    from selenium import webdriver

    programs = chromium()
    assert programs is not None, (
        "there is no Chromium: python scripts/install_servers.py .servers chromium"
    )
    browser, driver = programs
    with tempfile.TemporaryDirectory(prefix="lance-stream-", ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = browser
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        program = webdriver.Chrome(options, webdriver.ChromeService(driver))
        try:
            yield program
        finally:
            program.quit()


def in_scheme(browser: Any, scheme: str) -> None:
    """Let pages see that the user prefers light or dark."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

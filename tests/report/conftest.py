"""Headless Chromium, driven by playwright, and pages that are opened in it.

Without one the tests that ask for it are skipped; CHROMIUM=/path/to/browser names one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
OPTIONS = (
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def _chromium() -> str | None:
    named = os.environ.get("CHROMIUM")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = _chromium()
    if found is None:
        named = os.environ.get("CHROMIUM")
        pytest.skip(
            f"CHROMIUM={named} is not a program"
            if named
            else "no Chromium found (looked for " + ", ".join(NAMES[:5]) + "); set CHROMIUM"
        )
    with api.sync_playwright() as play:
        running = play.chromium.launch(executable_path=found, args=list(OPTIONS))
        yield running
        running.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a file; at the end there must have been no error, request, dialog or takeover."""
    contexts, wrong = [], []

    def opened(file: Path, width: int = 1200, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        address = file.as_uri()

        def foreign(url: str) -> bool:
            return not url.startswith(("data:", address))

        def dismissed(dialog: Any) -> None:
            wrong.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        page.on("console", lambda m: wrong.append(f"console: {m.text}"))
        page.on("pageerror", lambda e: wrong.append(f"error: {e}"))
        page.on("dialog", dismissed)
        page.on("request", lambda r: wrong.append(f"request: {r.url}") if foreign(r.url) else None)
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []

"""Headless Chromium, driven by playwright; CHROMIUM=/path/to/browser names one."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = "--no-sandbox --headless --disable-gpu --disable-background-networking --disable-sync"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = [os.environ["CHROMIUM"]] if "CHROMIUM" in os.environ else NAMES
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip(f"no Chromium (looked for {', '.join(names)}); set CHROMIUM")
    with api.sync_playwright() as play:
        running = play.chromium.launch(executable_path=program, args=OPTIONS.split())
        yield running
        running.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a file; at the end there must have been no error, request, dialog or takeover."""
    contexts, wrong, requests = [], [], []

    def open_page(file: Path, width: int = 1200, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong + [url for url in requests if not url.startswith(("data:", "file:"))] == []

"""Headless Chromium, driven by playwright, and pages that are opened in it.

Tests that need it are skipped if there is none; CHROMIUM=/path/to/browser names one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = "--no-sandbox --headless --disable-gpu --disable-quic --no-first-run "
OPTIONS += "--disable-background-networking --disable-component-update --disable-sync"


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
    contexts, wrong = [], []

    def open_page(file: Path, width: int = 1200, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        page, address = context.new_page(), file.as_uri()

        def note_request(request: Any) -> None:
            if not request.url.startswith(("data:", address)):
                wrong.append(f"request: {request.url}")

        def note_dialog(dialog: Any) -> None:
            wrong.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        page.on("console", lambda message: wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("dialog", note_dialog)
        page.on("request", note_request)
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []

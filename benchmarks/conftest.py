"""Options and the table at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.measure import Row, table

ROWS = pytest.StashKey[list[Row]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conceptors")
    group.addoption("--small", action="store_true", help="tiny sizes, to see that all runs")
    group.addoption("--table", type=Path, help="write the table of results to this file too")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []


@pytest.fixture
def rows(request: pytest.FixtureRequest) -> list[Row]:
    """Lines of the table; a benchmark appends its own."""
    return request.config.stash[ROWS]


@pytest.fixture
def small(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("small"))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    found = config.stash[ROWS]
    if not found:
        return
    terminalreporter.section("conceptors against older ways")
    terminalreporter.write_line(table(found))
    path = config.getoption("table")
    if path is not None:
        path.write_text(table(found) + "\n", encoding="utf-8")

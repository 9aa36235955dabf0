"""Writes the table of docs/models.md: `PYTHONPATH=src:tests python -m models.page`."""

from pathlib import Path

import torch

from models.measure import HARD, Family, Outcome, play, standing_of
from models.senses import FAMILIES

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
RULE = "|---|"  # what the line under the table's head begins with


def row(family: Family) -> str:
    """A family's line of the table."""
    counts = standing_of(family)
    hard, soft, plain = (play(family, how) for how in (HARD, {}, None))
    cells = [family.name, *(str(len(names)) for names in counts), f"{hard.drift:.0e}", _loss(hard)]
    cells += [f"{soft.drift:.2g}", _loss(soft), f"{plain.drift:.2g}", _loss(plain)]
    return f"| {' | '.join(cells)} |\n"


def _loss(outcome: Outcome) -> str:
    return f"{outcome.first_loss:.2f} → {outcome.last_loss:.2f}"


def read(text: str) -> list[list[str]]:
    """The cells of all lines of the table."""
    lines = [line for line in text.splitlines() if _is_row(line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def rewritten(text: str, rows: list[str]) -> str:
    """The page with these rows in its table."""
    lines = [line for line in text.splitlines(keepends=True) if not _is_row(line)]
    place = next(i for i, line in enumerate(lines) if line.startswith(RULE)) + 1
    return "".join([*lines[:place], *rows, *lines[place:]])


def _is_row(line: str) -> bool:
    return line.startswith("| ") and not line.startswith("| family")


if __name__ == "__main__":
    torch.set_num_threads(1)
    rows = [row(family) for family in FAMILIES]
    PAGE.write_text(rewritten(PAGE.read_text("utf-8"), rows), encoding="utf-8")

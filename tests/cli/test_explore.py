"""`conceptors explore`: a page, of digits or of a shield's layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from conceptors import Shield
from conceptors.cli import main
from helpers import normal


def test_of_digits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    opened: list[str] = []

    def no_browser(address: str) -> bool:
        opened.append(address)
        return False

    monkeypatch.setattr("webbrowser.open", no_browser)
    assert main(["explore"]) == 0
    assert capsys.readouterr().out == "page: explore.html\n"
    assert opened == []
    assert main(["explore", "--out", "new/page.html", "--open"]) == 0
    assert opened == [(tmp_path / "new" / "page.html").as_uri()]
    assert "no browser was found here" in capsys.readouterr().err
    assert "Conceptors of digits" in Path("new/page.html").read_text("utf-8")


def test_of_a_shield(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, page = tmp_path / "my.safetensors", tmp_path / "page.html"
    words = ["explore", "--shield", str(file), "--out", str(page)]
    assert main(words) == 2
    assert "my.safetensors'; shield.save(FILE) makes one" in capsys.readouterr().err
    shield = Shield(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)))
    shield.remember(normal(0, 30, 5).to(torch.float32))
    shield.save(file)
    assert main(words) == 0
    assert "1 task is remembered in 2 layers" in page.read_text("utf-8")
    page.unlink()
    file.write_bytes(file.read_bytes()[:-3])
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "damaged" in said
    assert not page.exists()

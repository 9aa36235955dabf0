"""Files written while others write, or over a link."""

import os
import threading
from pathlib import Path

from conceptors._internal.storage import write_atomically
from conceptors.report.theme import write_file


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    path, victim = tmp_path / "results.json", tmp_path / "victim"
    victim.write_text("mine")
    path.symlink_to(victim)
    write_atomically(path, b"new")
    assert (path.read_bytes(), path.is_symlink()) == (b"new", False)
    assert victim.read_text() == "mine"


def test_pages_written_at_once_do_not_clash(tmp_path: Path) -> None:
    path, failed = tmp_path / "index.html", []

    def write(number: int) -> None:
        try:
            for _ in range(30):
                write_file(path, f"<p>{number}</p>".encode() * 1000)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert path.read_text() in {f"<p>{number}</p>" * 1000 for number in range(4)}
    assert os.listdir(tmp_path) == ["index.html"]

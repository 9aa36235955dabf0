"""Files written while others write, are killed, or the machine goes down."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from conceptors._internal.storage import write_atomically
from conceptors.report.theme import write_file

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no locks on files there")

KILLED = """
import os, sys
from pathlib import Path
from conceptors._internal.storage import write_atomically
def wait(handle):
    print("ready", flush=True)
    sys.stdin.read()
os.fsync = wait
write_atomically(Path(sys.argv[1]), b"half of it")
"""


def begin(path: Path) -> subprocess.Popen[str]:
    """A process in the middle of writing `path`."""
    command = [sys.executable, "-c", KILLED, str(path)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_temporary_files_of_killed_writers_are_swept(tmp_path: Path) -> None:
    path = tmp_path / "results[1].json"  # a name that is also a pattern
    other, victim = tmp_path / ".results1.json.x.part", tmp_path / "victim"
    victim.write_text("mine")
    other.write_text("someone else's")
    (tmp_path / ".results[1].json.x.part").symlink_to(victim)
    for _ in range(2):
        process = begin(path)
        process.send_signal(signal.SIGKILL)
        end(process)
    files = os.listdir(tmp_path)
    assert len(files) == 4  # the second removed what the first had left
    process = begin(path)
    write_atomically(path, b"new")
    assert len(os.listdir(tmp_path)) == 5  # the file of a living writer stays
    end(process)
    path.unlink()
    path.symlink_to(victim)  # a link is replaced, not followed
    write_atomically(path, b"new")
    assert (path.read_bytes(), path.is_symlink()) == (b"new", False)
    assert victim.read_text() == "mine"
    assert other.exists()


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

"""What is installed and from where: hashes, pins, the bill of materials, and what make asks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from conceptors.experiments.machine import environment

ROOT = Path(__file__).parents[1]
while not (ROOT / "pyproject.toml").is_file():
    ROOT = ROOT.parent
sys.path.insert(0, str(ROOT / "tools"))
lock: Any = pytest.importorskip("lock", reason="not a checkout")
sbom: Any = pytest.importorskip("sbom", reason="not a checkout")

FILES = ("requirements.txt", "requirements-torch.txt", "requirements-torch-cpu.txt")
FRAMEWORKS = "requirements-frameworks.txt"


def locked(file: str) -> dict[str, tuple[str, list[str]]]:
    """(version, hashes) by name."""
    found: dict[str, tuple[str, list[str]]] = {}
    for entry in (ROOT / file).read_text().replace("\\\n", " ").splitlines():
        if not entry.startswith("#"):
            pinned = re.match(r"([a-z0-9-]+)==(\S+)", entry)
            assert pinned, entry
            found[pinned[1]] = (pinned[2], re.findall(r"--hash=sha256:([0-9a-f]{64})\b", entry))
    return found


# --- hashes ------------------------------------------------------------------------------


def test_everything_has_a_hash() -> None:
    for file in (*FILES, FRAMEWORKS):
        entries = locked(file)
        assert entries
        assert [name for name, (_, hashes) in entries.items() if not hashes] == []


def test_the_lock_is_of_the_constraints() -> None:
    pins = lock.read_pins((ROOT / "constraints.txt").read_text())
    whole = locked(FILES[0]) | locked(FILES[1])
    assert {name: version for name, (version, _) in whole.items()} == pins
    assert locked(FILES[2])["torch"][0] == f"{pins['torch']}+cpu"
    more = lock.read_pins((ROOT / "constraints-frameworks.txt").read_text())
    assert {name: version for name, (version, _) in locked(FRAMEWORKS).items()} == more
    assert not more.keys() & pins.keys()


def test_make_installs_with_hashes_only() -> None:
    text = (ROOT / "Makefile").read_text()
    assert len(re.findall(r"pip install", text)) == 1  # the variable INSTALL
    for line in text.splitlines():
        if "$(INSTALL)" in line:
            assert "--require-hashes" in line or line.endswith("--no-build-isolation -e .")
    assert "--no-deps" in text


def test_the_build_backend_is_pinned() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    pins = lock.read_pins((ROOT / "constraints.txt").read_text())
    assert build["requires"] == [f"hatchling=={pins['hatchling']}"]
    assert set(pins) >= {"hatchling", "editables"}


def test_no_wheel_of_another_platform_is_listed() -> None:
    assert lock.fits("a-1-py3-none-any.whl")
    assert lock.fits("a-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl")
    assert lock.fits("a-1-cp38-abi3-macosx_11_0_arm64.whl")
    for other in ("cp311-cp311-win_amd64", "cp310-cp310-macosx_11_0_arm64", "cp313-cp313t-any"):
        assert not lock.fits(f"a-1-{other}.whl")
    assert lock.version_of("Torch-2.13.0+cpu-cp311-cp311-any.whl", "torch") == "2.13.0+cpu"
    assert lock.version_of("a_b-1.0.0.tar.gz", "a-b") == lock.flat("1.0")


def test_nothing_says_where_a_package_is_hosted() -> None:
    for file in (*FILES, FRAMEWORKS, "constraints.txt", "constraints-frameworks.txt", "Makefile"):
        assert "://" not in (ROOT / file).read_text()


# --- the bill of materials ---------------------------------------------------------------


def test_the_bill_of_materials() -> None:
    found = sbom.bill()
    assert (found["bomFormat"], found["specVersion"], found["version"]) == ("CycloneDX", "1.5", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", found["serialNumber"])
    assert found["metadata"]["component"]["name"] == "conceptors"
    parts = found["components"]
    names = {part["name"].lower() for part in parts}
    assert {"torch", "numpy"} <= names
    assert "conceptors" not in names
    for part in parts:
        assert part["type"] == "library"
        assert part["purl"].startswith("pkg:pypi/")
        assert part["version"]
    refs = [part["bom-ref"] for part in [*parts, found["metadata"]["component"]]]
    assert len(set(refs)) == len(refs)
    for entry in found["dependencies"]:
        assert {entry["ref"], *entry["dependsOn"]} <= set(refs)
    needs = {entry["ref"]: entry["dependsOn"] for entry in found["dependencies"]}
    own = needs[found["metadata"]["component"]["bom-ref"]]
    assert any(ref.startswith("pkg:pypi/torch@") for ref in own)


# --- system packages ---------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """A machine without a browser, where root could install one; apt-get only notes its words."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("make", "sh", "timeout", "grep", "env", "printf", "python3"):
        if there := shutil.which(name):
            (tools / name).symlink_to(there)
    scripts = {"id": "echo 0", "apt-get": f'echo "$@" >> {tmp_path}/asked'}
    for name, script in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (tools / name).chmod(0o755)
    return {"PATH": str(tools), "CHROMIUM": "", "HOME": str(tmp_path)}


def browser(env: dict[str, str]) -> str:
    done = subprocess.run(
        ["make", "browser"],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


@pytest.mark.skipif(not shutil.which("make"), reason="no make")
def test_system_packages_are_not_installed_unasked(bare: dict[str, str], tmp_path: Path) -> None:
    said = browser(bare)
    assert "apt-get install chromium" in said
    assert "skipped" in said
    assert not (tmp_path / "asked").exists()


@pytest.mark.skipif(not shutil.which("make"), reason="no make")
def test_in_ci_nobody_is_asked(bare: dict[str, str], tmp_path: Path) -> None:
    browser({**bare, "CI": "1"})
    assert "chromium" in (tmp_path / "asked").read_text()
    assert re.search(r"^export CI=", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


@pytest.mark.parametrize(("answer", "installed"), [("n", False), ("", False), ("y", True)])
@pytest.mark.skipif(not shutil.which("make") or os.name == "nt", reason="no make, no terminal")
def test_at_a_terminal_it_asks(
    answer: str, installed: bool, bare: dict[str, str], tmp_path: Path
) -> None:
    import pty

    near, far = pty.openpty()
    try:
        command = ["make", "browser"]
        process = subprocess.Popen(
            command, cwd=ROOT, env=bare, stdin=far, stdout=subprocess.PIPE, text=True
        )
        os.write(near, f"{answer}\n".encode())
        said, _ = process.communicate(timeout=60)
    finally:
        os.close(near)
        os.close(far)
    assert "Install chromium" in said
    assert (tmp_path / "asked").exists() == installed


# --- whose commit ------------------------------------------------------------------------


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.invalid", "-c", "commit.gpgsign=false"]
    own = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    command = ["git", "-C", str(folder), *who, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=own)
    return done.stdout.strip()


def recorded(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The commit that is recorded where the package lies there."""
    monkeypatch.setattr("conceptors.experiments.machine.__file__", str(machine))
    return environment(torch.device("cpu"))["commit"]


@pytest.mark.parametrize("place", ["site-packages", "src", "vendored"])
@pytest.mark.skipif(not shutil.which("git"), reason="no git")
def test_the_commit_of_a_users_project_is_not_ours(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    inner = {"site-packages": ".venv/lib/site-packages", "src": "src", "vendored": "lib/c/src"}
    machine = project / inner[place] / "conceptors" / "experiments" / "machine.py"
    machine.parent.mkdir(parents=True)
    machine.write_text("")
    (project / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    if place == "vendored":
        (project / "lib/c/pyproject.toml").write_text('[project]\nname = "conceptors"\n')
    git(tmp_path, "init", "-q", str(project))
    git(project, "add", "-A", "-f")
    git(project, "commit", "-q", "-m", "theirs")
    assert recorded(machine, monkeypatch) is None


@pytest.mark.skipif(not shutil.which("git"), reason="no git")
def test_our_own_commit_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = tmp_path / "src" / "conceptors" / "experiments" / "machine.py"
    machine.parent.mkdir(parents=True)
    machine.write_text("")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "conceptors"\n')
    assert recorded(machine, monkeypatch) is None  # no repository
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "ours")
    assert recorded(machine, monkeypatch) is None  # not a part of it
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "ours")
    head = git(tmp_path, "rev-parse", "--short=12", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert recorded(machine, monkeypatch) == head
    machine.write_text("# edited since\n")
    assert recorded(machine, monkeypatch) == f"{head} and changes"

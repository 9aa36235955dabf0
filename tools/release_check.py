"""Check a release: build it, install it beside only torch and numpy, and use it.

Run `make release-check`. Nothing is downloaded: the new environment links to the installed torch
and numpy and their requirements, and to nothing else.
"""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")  # torch has wheels for these

AFTERWARDS = """
assert shield.n_tasks == 2 and all(0 < quota <= 1 for quota in shield.quota().values())
for name in ("sklearn", "safetensors", "altair", "tqdm"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} can be imported: this environment is not empty")
"""


def main() -> int:
    """Check everything and print one line per check; return 1 if something is wrong."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder))
    except (CheckError, OSError) as error:
        print(f"release-check: {error}", file=sys.stderr)
        return 1
    return 0


class CheckError(Exception):
    """The release is not ready."""


def check(folder: Path) -> None:
    number = version()
    say(f"version {number}, in the changelog, for Python {', '.join(agreed(number))}")
    checked = [name for name in PYTHONS if compiles_with(name)]
    say(f"the source compiles with Python {', '.join(checked)}")
    sdist, wheel = build(ROOT, folder / "dist")
    again = build(unpacked(sdist, folder / "source"), folder / "again")[1]
    if contents(wheel) != contents(again):
        differ = set(contents(wheel).items()) ^ set(contents(again).items())
        raise CheckError(
            f"the wheel made from the sdist differs: {sorted({name for name, _ in differ})}"
        )
    say(f"built {sdist.name} and {wheel.name}; the sdist builds the same wheel")
    complete(wheel)
    python = installed(wheel, folder / "env")
    program = first_program() + AFTERWARDS
    run([str(python), "-I", "-W", "error", "-c", program], folder)
    say("the first program of docs/finetuning.md runs beside torch and numpy alone")
    output = run([str(python.with_name("conceptors")), "--version"], folder)
    if output != f"conceptors {number}\n":
        raise CheckError(f"conceptors --version prints {output!r}, expected {number}")
    run([str(python.with_name("conceptors")), "list"], folder)
    say("the command line runs there")


def say(text: str) -> None:
    print(f"ok: {text}", flush=True)


def version() -> str:
    """Read `__version__` from the package, the only place that defines it."""
    tree = ast.parse((ROOT / "src" / "conceptors" / "__init__.py").read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__":
            return str(ast.literal_eval(node.value))
    raise CheckError("src/conceptors/__init__.py has no __version__")


def agreed(number: str) -> list[str]:
    """Check changelog and classifiers against `number` and `PYTHONS`; return the versions."""
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    if first is None or first[1] != number:
        newest = first and first[1]
        raise CheckError(f"CHANGELOG.md begins with {newest}, but __version__ is {number}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    if "version" in project:
        raise CheckError("pyproject.toml has a version; remove it, as hatch reads __version__")
    prefix = "Programming Language :: Python :: 3."
    named = [c.removeprefix(prefix) for c in project["classifiers"] if c.startswith(prefix)]
    if [f"3.{name}" for name in named] != list(PYTHONS):
        raise CheckError(f"classifiers are for Python 3.{named}, expected {list(PYTHONS)}")
    return list(PYTHONS)


def compiles_with(name: str) -> bool:
    """Compile the source with this Python; return False if it is not installed."""
    current = f"{sys.version_info[0]}.{sys.version_info[1]}"
    python = sys.executable if name == current else shutil.which(f"python{name}")
    there = python and subprocess.run([python, "-c", ""], capture_output=True, check=False)
    if not python or not there or there.returncode:
        return False
    code = (
        "import sys; [compile(open(f, encoding='utf-8').read(), f, 'exec') for f in sys.argv[1:]]"
    )
    files = sorted(str(file) for file in (ROOT / "src").rglob("*.py"))
    run([python, "-I", "-W", "error", "-c", code, *files], ROOT)
    return True


def build(source: Path, folder: Path) -> tuple[Path, Path]:
    """Build (sdist, wheel) from a source tree."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    run([*command, "-t", "sdist", "-t", "wheel"], source)
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def unpacked(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.iterdir())


def contents(wheel: Path) -> dict[str, int]:
    """Return checksums of all files by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: info.CRC for info in archive.infolist()}


def complete(wheel: Path) -> None:
    """Check that the wheel contains every tracked file of the package, and only metadata more."""
    listed = run(["git", "ls-files", "src/conceptors"], ROOT).split()
    expected = {name.removeprefix("src/") for name in listed}
    packed = {name for name in contents(wheel) if ".dist-info/" not in name}
    if packed != expected:
        raise CheckError(
            f"the wheel lacks {sorted(expected - packed)} and contains untracked files "
            f"{sorted(packed - expected)}"
        )
    say(f"the wheel contains the {len(packed)} files of the package and nothing else")


def installed(wheel: Path, folder: Path) -> Path:
    """Create an environment with the wheel, torch, numpy and their requirements."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    run([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)], folder)
    place = next(folder.glob("lib/python*/site-packages"))
    names = required(["torch", "numpy"])
    for name in names:
        link(importlib.metadata.distribution(name), place)
    run([*pip, "check"], folder)
    say(f"installed beside {', '.join(sorted(names))}; nothing is missing")
    return python


def required(names: Sequence[str]) -> set[str]:
    """Return these distributions and all their requirements on this machine."""
    names_seen: set[str] = set()
    waiting = [canonicalize_name(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in names_seen:
            continue
        names_seen.add(name)
        for text in importlib.metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(canonicalize_name(requirement.name))
    return names_seen


def link(distribution: importlib.metadata.Distribution, place: Path) -> None:
    """Link to every top-level file and folder of a distribution."""
    tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
    for top in tops:
        (place / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())


def first_program() -> str:
    """Return the first Python block of a page that needs only torch."""
    page = "docs/finetuning.md"
    block = re.search(r"^```python\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.M | re.S)
    if block is None:
        raise CheckError(f"{page} has no Python block; name another page here")
    return block[1]


def run(command: Sequence[str], folder: Path) -> str:
    """Return the output of a command that runs without our PYTHON* variables."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode:
        shown = (done.stderr or done.stdout).strip()[-2000:]
        raise CheckError(f"{Path(command[0]).name} {' '.join(command[1:4])} failed:\n{shown}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())

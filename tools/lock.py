"""Lock versions: write requirements*.txt with the hashes of all packages in constraints*.txt.

requirements-torch-cpu.txt locks torch's build without CUDA, if pip is configured to find it.
requirements-torch.txt locks torch as published, which on Linux needs CUDA's libraries.
requirements-frameworks.txt locks constraints-frameworks.txt, and requirements.txt all others.

Run `make lock` after changing a version. It queries the indexes and folders that pip is configured
for, and lists every wheel that Linux (x86_64, aarch64) or macOS can install, or the source archive
of a package without wheels.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAD = "# Made by `make lock` from {}; `make` installs nothing that is not listed here.\n"
CUDA = re.compile(r"^(nvidia-|cuda-|triton$)")  # only torch's wheels with CUDA need these
PYTHONS = {"py3", "cp311", "cp312", "cp313", "cp314"}
PLATFORMS = re.compile(r"any$|manylinux\S*_(x86_64|aarch64)$|macosx")


def main() -> int:
    core, frameworks = (
        read_pins((ROOT / name).read_text())
        for name in ("constraints.txt", "constraints-frameworks.txt")
    )
    pins = core | frameworks
    indexes, folders = sources()
    with ThreadPoolExecutor(8) as pool:
        locked = dict(zip(pins, pool.map(lambda n: hashes(n, pins[n], indexes, folders), pins)))
    if lacking := [f"{name}=={pins[name]}" for name, digests in locked.items() if not digests]:
        print(
            f"no file found for {', '.join(lacking)}; check versions and pip's indexes",
            file=sys.stderr,
        )
        return 1
    cpu = hashes("torch", pins["torch"] + "+cpu", indexes, folders)
    torch = {name: locked[name] for name in locked if name == "torch" or CUDA.match(name)}
    others = {name: locked[name] for name in core if name not in torch}
    write("requirements.txt", others, pins)
    extra = {name: locked[name] for name in frameworks}
    write("requirements-frameworks.txt", extra, pins, "constraints-frameworks.txt")
    write("requirements-torch.txt", torch, pins)
    if cpu:  # otherwise the old file stays
        write("requirements-torch-cpu.txt", {"torch": cpu}, {"torch": pins["torch"] + "+cpu"})
    return 0


def read_pins(text: str) -> dict[str, str]:
    """Return versions by normalised name."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return {normal(name): version for name, _, version in (x.partition("==") for x in lines if x)}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def write(
    file: str, locked: dict[str, list[str]], pins: dict[str, str], source: str = "constraints.txt"
) -> None:
    lines = [HEAD.format(source)]
    for name in sorted(locked):
        when = ' ; sys_platform == "linux"' if CUDA.match(name) else ""
        marks = "".join(f" \\\n    --hash=sha256:{digest}" for digest in locked[name])
        lines.append(f"{name}=={pins[name]}{when}{marks}\n")
    (ROOT / file).write_text("".join(lines))


def sources() -> tuple[list[str], list[Path]]:
    """Return the indexes and local folders of this machine's pip."""
    from pip._internal.models.index import PyPI  # pip names its default nowhere else

    command = [sys.executable, "-m", "pip", "config", "list"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    values = {"index-url": [PyPI.simple_url], "extra-index-url": [], "find-links": []}
    for line in output.splitlines():
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        if name in values:
            values[name] = value.strip("'\"").replace("\\n", " ").split()
    folders = [Path(text) for text in values["find-links"] if Path(text).is_dir()]
    return values["index-url"] + values["extra-index-url"], folders


def hashes(name: str, version: str, indexes: list[str], folders: list[Path]) -> list[str]:
    """Return the SHA-256 of every file of this version that `make` may install."""
    files: dict[str, str] = {}  # digest -> file name
    for index in indexes:
        for link in links(f"{index.rstrip('/')}/{name}/"):
            address, _, mark = link.partition("#sha256=")
            if mark:
                files[mark] = urllib.parse.unquote(address.rpartition("/")[2])
    for folder in folders:
        for path in folder.iterdir():
            if path.suffix == ".whl" and normal(path.name.split("-")[0]) == name:
                files[hashlib.sha256(path.read_bytes()).hexdigest()] = path.name
    matching = {
        digest: file for digest, file in files.items() if version_of(file, name) == flat(version)
    }
    wheels = [digest for digest, file in matching.items() if file.endswith(".whl") and fits(file)]
    return sorted(wheels or [d for d, file in matching.items() if file.endswith(".tar.gz")])


def links(address: str) -> list[str]:
    if address.startswith("file:"):
        address = address + "index.html"
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            page = answer.read().decode()
    except (urllib.error.HTTPError, urllib.error.URLError) as error:
        if isinstance(error, urllib.error.HTTPError) and error.code != 404:
            raise
        if not address.startswith("file:") and not isinstance(error, urllib.error.HTTPError):
            raise
        return []  # an index without this package
    return [unescape(link) for link in re.findall(r'<a [^>]*?href="([^"]+)"', page)]


def version_of(file: str, name: str) -> str | None:
    stem = file.removesuffix(".tar.gz")
    match = re.match(r"(.+?)-(\d[^-]*)", stem)
    return flat(match[2]) if match and normal(match[1]) == name else None


def flat(version: str) -> str:
    """Strip trailing zeros: 1.0 and 1.0.0 are one version; 1.0+cpu is another build."""
    return re.sub(r"(\.0)+$", "", version)


def fits(wheel: str) -> bool:
    """Whether a supported Python on a supported platform can install this wheel."""
    *_, pythons, abi, platforms = wheel.removesuffix(".whl").split("-")
    known = bool(PYTHONS & set(pythons.split("."))) or abi == "abi3"
    return known and not abi.endswith("t") and any(map(PLATFORMS.match, platforms.split(".")))


if __name__ == "__main__":
    sys.exit(main())

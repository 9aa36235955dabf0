"""Write a software bill of materials of the current environment: CycloneDX 1.5, as JSON.

`make sbom` writes build/sbom.json. Hashes are those that `make` required during installation.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OWN = "conceptors"


def bill() -> dict[str, Any]:
    """List all installed packages and their requirements."""
    installed = {normal(d.name): d for d in distributions() if d.name}
    if OWN not in installed:
        raise SystemExit(f"{OWN} is not installed in {sys.prefix}: run make sbom")
    locked = hashes()
    parts = {name: component(d, locked.get(name, [])) for name, d in sorted(installed.items())}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
            "component": parts.pop(OWN),
        },
        "components": list(parts.values()),
        "dependencies": [
            {
                "ref": purl(d),
                "dependsOn": sorted({purl(installed[n]) for n in required(d) & set(installed)}),
            }
            for _, d in sorted(installed.items())
        ],
    }


def component(package: Distribution, locked: list[str]) -> dict[str, Any]:
    metadata = package.metadata.json
    part: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl(package),
        "name": package.name,
        "version": package.version,
        "purl": purl(package),
    }
    licence = str(metadata.get("license_expression") or metadata.get("license") or "")
    if licence and len(licence) < 100:  # some packages put the whole text here
        part["licenses"] = [{"license": {"name": licence}}]
    if len(locked) == 1:  # with several, which file was installed is unknown
        part["hashes"] = [{"alg": "SHA-256", "content": locked[0]}]
    return part


def hashes() -> dict[str, list[str]]:
    """Return the hashes in the lock file by normalised name."""
    locked: dict[str, list[str]] = {}
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        if pinned := re.match(r"([\w.-]+)==", line):
            locked[pinned[1]] = []
        elif digest := re.search(r"--hash=sha256:([0-9a-f]{64})", line):
            list(locked.values())[-1].append(digest[1])
    return locked


def required(package: Distribution) -> set[str]:
    """Return the names of all possible requirements of a package, including extras."""
    names = (re.match(r"[\w.-]+", text) for text in package.requires or [])
    return {normal(name[0]) for name in names if name} - {normal(package.name)}


def purl(package: Distribution) -> str:
    return f"pkg:pypi/{normal(package.name)}@{package.version}"


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(bill(), indent=1) + "\n")

"""A software bill of materials of the environment that runs this: CycloneDX 1.5, as JSON.

`make sbom` writes build/sbom.json. Hashes are those that `make` demanded when it installed.
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
    """All packages that are installed, and what each of them requires."""
    found = {normal(d.name): d for d in distributions() if d.name}
    if OWN not in found:
        raise SystemExit(f"{OWN} is not installed in {sys.prefix}: run make sbom")
    demanded = hashes()
    parts = {name: component(d, demanded.get(name, [])) for name, d in sorted(found.items())}
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
                "dependsOn": sorted({purl(found[n]) for n in required(d) & set(found)}),
            }
            for _, d in sorted(found.items())
        ],
    }


def component(found: Distribution, demanded: list[str]) -> dict[str, Any]:
    told = found.metadata.json
    part: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl(found),
        "name": found.name,
        "version": found.version,
        "purl": purl(found),
    }
    licence = str(told.get("license_expression") or told.get("license") or "")
    if licence and len(licence) < 100:  # some put the whole text there
        part["licenses"] = [{"license": {"name": licence}}]
    if len(demanded) == 1:  # else one file of several was installed, and which is not recorded
        part["hashes"] = [{"alg": "SHA-256", "content": demanded[0]}]
    return part


def hashes() -> dict[str, list[str]]:
    """What the lock file demands, by normalised name."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        if pinned := re.match(r"([\w.-]+)==", line):
            found[pinned[1]] = []
        elif digest := re.search(r"--hash=sha256:([0-9a-f]{64})", line):
            list(found.values())[-1].append(digest[1])
    return found


def required(found: Distribution) -> set[str]:
    """Names of all that a package may require, extras too; absent ones are left out later."""
    names = (re.match(r"[\w.-]+", text) for text in found.requires or [])
    return {normal(name[0]) for name in names if name} - {normal(found.name)}


def purl(found: Distribution) -> str:
    return f"pkg:pypi/{normal(found.name)}@{found.version}"


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(bill(), indent=1) + "\n")

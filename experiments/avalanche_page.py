"""The tables of docs/integrations.md, from what avalanche_peers.py has written.

    python experiments/avalanche_page.py results/avalanche docs/integrations.md

What is written by hand around the two markers stays. Avalanche is not needed.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from conceptors._internal.files import write_atomically

BEGIN = "<!-- made by `experiments/avalanche_page.py`: what is between these lines is not kept -->"
END = "<!-- end of what is made -->"
BOUND = "joint"
HEAD = ["", "accuracy", "forgetting", "stored samples", "time", "chosen on validation images"]


def spread(values: list[float], digits: int = 1) -> str:
    """Mean ± standard deviation."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def verdict(own: list[float], other: list[float]) -> str:
    """What the first is: ahead, behind, or level where standard errors of the means overlap."""
    if min(len(own), len(other)) < 2:
        return "unclear"
    apart = statistics.mean(own) - statistics.mean(other)
    errors = sum(statistics.stdev(values) / len(values) ** 0.5 for values in (own, other))
    return "level" if abs(apart) <= errors else "ahead" if apart > 0 else "behind"


def table(runs: list[dict[str, Any]], titles: dict[str, str], ours: list[str]) -> str:
    """One row per method, and what ours is beside it."""
    methods = [name for name in titles if any(run["method"] == name for run in runs)]
    own = {method: [run for run in runs if run["method"] == method] for method in methods}
    plain = {run["seed"]: run["seconds"] for run in own.get("naive", [])}
    shown = [method for method in ours if method in methods]
    head = [*HEAD, *(f"{titles[method]} is" for method in shown)]
    lines = [head, ["---"] * len(head)]
    for method in methods:
        found = own[method]
        scores = [run["final_accuracy"] for run in found]
        lost = [run["forgetting"] for run in found if run["forgetting"] is not None]
        times = [run["seconds"] / plain[run["seed"]] for run in found if run["seed"] in plain]
        rival = method != BOUND and method not in ours
        lines.append(
            [
                f"**{titles[method]}**" if method in ours else titles[method],
                spread(scores),
                spread(lost) if lost else "–",
                "all" if method == BOUND else f"{max(r['stored_samples'] for r in found):,}",
                f"{statistics.median(times):.1f} ×" if times else "–",
                ", ".join(f"{k} {v:g}" for k, v in found[0]["settings"].items()) or "–",
                *(
                    verdict([run["final_accuracy"] for run in own[one]], scores) if rival else ""
                    for one in shown
                ),
            ]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def body(results: dict[str, Any]) -> str:
    """Everything that is made, as Markdown."""
    setup, titles, made = results["setup"], results["titles"], results["environment"]
    parts = []
    groups = dict.fromkeys((run["stream"], run["optimizer"]) for run in results["runs"])
    for stream, optimizer in groups:
        runs = [r for r in results["runs"] if (r["stream"], r["optimizer"]) == (stream, optimizer)]
        seeds = sorted({run["seed"] for run in runs})
        about = f"{titles[stream]}: {optimizer}, {setup['epochs'][stream]} epochs per task"
        parts.append(f"**{about}, batches of {setup['batch']}, seeds {seeds[0]} to {seeds[-1]}**")
        parts.append(table(runs, titles, results["ours"]))
    machine = f"one thread of {made['processor']}"
    versions = ", ".join(f"{name} {made[name.lower()]}" for name in ("Avalanche", "torch"))
    parts.append(f"Made with {versions} and Python {made['python']}, {machine}.")
    return "\n\n".join(parts) + "\n"


def between(held: str, made: str, page: Path) -> str:
    """`held` with `made` between the markers."""
    if held.count(BEGIN) != 1 or held.count(END) != 1 or held.index(BEGIN) > held.index(END):
        raise ValueError(f"{page} must have these two lines once, in this order: {BEGIN} and {END}")
    before, rest = held.split(BEGIN)
    return f"{before}{BEGIN}\n\n{made}\n{END}{rest.split(END)[1]}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="folder with results.json")
    parser.add_argument("page", type=Path, help="Markdown file with the two markers")
    options = parser.parse_args(arguments)
    results = json.loads((options.results / "results.json").read_text("utf-8"))
    held = options.page.read_text("utf-8")
    write_atomically(options.page, between(held, body(results), options.page).encode())


if __name__ == "__main__":
    main()

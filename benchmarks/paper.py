"""Reproduce numbers about the paper: the effect of settings it does not state, and similarities.

`ablation` changes one setting of `--preset paper` at a time: 130 runs of a few seconds on a GPU.
`similarity` compares raw images: original with permuted digits, digits 5-9 with 0-4, and the input
layer's quota over ten permuted tasks. It takes minutes on a CPU.

    python -m benchmarks.paper ablation --device cuda         # writes results/ablation.csv
    python -m benchmarks.paper similarity --out out/similarity.csv
    python -m benchmarks.paper ablation --table               # print the table of the docs
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import common
from benchmarks.common import Row, Table
from benchmarks.runs import Run, run_missing
from conceptors import Conceptor, similarity
from conceptors.scenarios import build

VARIANTS: dict[str, dict[str, dict[str, object]]]  # benchmark -> name -> changed settings
VARIANTS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
APERTURES = (4.0, 9.0)


def ablation_runs(seeds: int) -> list[Run]:
    preset = ("--preset", "paper")
    return [
        Run({"benchmark": name, "variant": variant}, name, "cab", seed, preset, settings)
        for name, variants in VARIANTS.items()
        for variant, settings in variants.items()
        for seed in range(seeds)
    ]


def ablation_table(table: Table) -> str:
    """Format means over seeds; the committed file has one row per variant, with std instead."""
    rows = []
    for name, variants in VARIANTS.items():
        for variant in variants:
            values = table.values("accuracy", benchmark=name, variant=variant)
            text = common.mean_and_std(values)
            if spread := table.values("std", benchmark=name, variant=variant):
                text += f" ± {spread[0]:.2f}"
            rows.append([name, variant, text])
    return common.markdown(["benchmark", "setting", "accuracy"], rows)


def images(scenario: str, seed: int, tasks: int, limit: int | None) -> list[Tensor]:
    """Return the raw training images of every task, `[n, 784]`."""
    splits = [task.train for task in build(scenario, seed, tasks=tasks, limit=limit).tasks]
    return [split.take(torch.arange(len(split)))[0].flatten(1) for split in splits]


def similarity_row(aperture: float, seeds: int, limit: int | None, device: torch.device) -> Row:
    def conceptor(x: Tensor) -> Conceptor:
        return Conceptor.from_states(x.to(device), aperture=aperture)

    halves = [conceptor(x) for x in images("disjoint-mnist", 0, 2, limit)]
    permuted, quotas = [], []
    for seed in range(seeds):
        tasks = [conceptor(x) for x in images("permuted-mnist", seed, 10, limit)]
        permuted += [float(similarity(tasks[0], task)) for task in tasks[1:]]
        claimed, quota = tasks[0], [float(tasks[0].quota)]
        for task in tasks[1:]:
            claimed = claimed | task
            quota.append(float(claimed.quota))
        quotas.append(quota)
    mean_quota = torch.tensor(quotas).mean(0).tolist()
    return {
        "aperture": aperture,
        "original_and_permuted": round(sum(permuted) / len(permuted), 4),
        "std": round(float(torch.tensor(permuted).std()), 4),
        "digits_5_9_and_0_4": round(float(similarity(*halves)), 4),
        "quota_over_ten_tasks": " ".join(f"{value:.4f}" for value in mean_quota),
        **common.environment(device),
    }


def similarity_table(table: Table) -> str:
    rows = []
    for row in table.rows:
        quota = [float(value) for value in row["quota_over_ten_tasks"].split()]
        rises = common.numbers([quota[0], quota[1] - quota[0], quota[9] - quota[8]])
        spread = f"{float(row['original_and_permuted']):.3f} ± {float(row['std']):.3f}"
        rows.append([f"{float(row['aperture']):g}", spread, row["digits_5_9_and_0_4"], rises])
    header = ["aperture", "ρ(original, permuted)", "ρ(5–9, 0–4)", "quota: task 1, rise by 2, by 10"]
    return common.markdown(header, rows)


def main(arguments: list[str] | None = None) -> int:
    parser = common.options(__doc__, "results/STUDY.csv")
    parser.add_argument("study", choices=("ablation", "similarity"))
    parser.add_argument("--runs", type=Path, help="folder of all outputs (default: beside --out)")
    asked = parser.parse_args(arguments)
    out = asked.out.with_name(asked.out.name.replace("STUDY", asked.study))
    failures, device = 0, common.find_device(asked.device)
    if asked.study == "ablation":
        table = Table(out, ("benchmark", "variant", "seed"))
        if not asked.table:
            folder = asked.runs or out.with_suffix("")
            runs = ablation_runs(asked.seeds or 10)
            failures = run_missing(table, runs, device, folder, asked.tiny)
        print(ablation_table(table))
    else:
        table = Table(out, ("aperture",))
        for aperture in () if asked.table else APERTURES:
            if {"aperture": aperture} not in table:
                limit = 400 if asked.tiny else None
                table.add(similarity_row(aperture, asked.seeds or 1, limit, device))
                common.say(f"aperture {aperture:g} done")
        print(similarity_table(table))
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main())

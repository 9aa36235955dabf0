"""Thousands of drawn scenarios, or one of them again.

python tests/promises/soak.py --seeds 2000        # prints the seed of every failure
python tests/promises/soak.py --seed 12345        # prints one
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from tqdm.auto import tqdm

from promises.scenarios import play


def soak(seeds: Iterable[int]) -> bool:
    """Play all scenarios; return whether one failed."""
    ends: Counter[str] = Counter()
    failed = []
    for seed in tqdm(seeds, unit="draw", mininterval=1.0):
        outcome = play(seed)
        ends.update({outcome.end: not outcome.failed, "learned": outcome.learned})
        if outcome.failed:
            failed.append(seed)
            tqdm.write(f"{outcome}\n")
    print(", ".join(f"{count} {end}" for end, count in ends.items() if count))
    print(f"{len(failed)} failed: {' '.join(map(str, failed))}")
    return bool(failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Play thousands of drawn scenarios.")
    parser.add_argument("--seed", type=int, help="play only this one, and print it")
    parser.add_argument("--seeds", type=int, default=2000, help="how many (default 2000)")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # the matrices are tiny
    if chosen.seed is None:
        raise SystemExit(soak(range(chosen.start, chosen.start + chosen.seeds)))
    outcome = play(chosen.seed)
    print(outcome)
    raise SystemExit(outcome.failed)

"""The report's similarity and quota numbers, from the raw images of all of MNIST.

python experiments/similarity.py --device cuda --out results/similarity.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from conceptors import Conceptor, similarity
from conceptors._internal.files import write_atomically
from conceptors.experiments.machine import environment
from conceptors.experiments.scenarios.data import load

APERTURES = (4.0, 9.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--permutations", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("results/similarity.json"))
    options = parser.parse_args()
    device = torch.device(options.device)
    arrays = load("mnist")
    images = (arrays.train_x.flatten(1).double() / 255).to(device)  # [60000, 784]
    low = arrays.train_y.to(device) < 5
    orders = [
        torch.randperm(784, generator=torch.Generator().manual_seed(seed)).to(device)
        for seed in range(options.permutations)
    ]
    found: dict[str, Any] = {}
    for aperture in APERTURES:
        original = Conceptor.from_states(images, aperture)
        total = original
        quotas = [float(total.quota)]
        rho = []
        for order in orders:
            permuted = Conceptor.from_states(images[:, order], aperture)
            rho.append(float(similarity(original, permuted)))
            if len(quotas) < 10:
                total = total | permuted
                quotas.append(float(total.quota))
        groups = [Conceptor.from_states(images[mask], aperture) for mask in (~low, low)]
        found[f"aperture {aperture:g}"] = {
            "original and permuted": [statistics.mean(rho), statistics.stdev(rho)],
            "5-9 and 0-4": float(similarity(*groups)),
            "quota over ten tasks": [round(q, 4) for q in quotas],
        }
    found["environment"] = environment(device)
    print(json.dumps(found, indent=1))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out, json.dumps(found, indent=1).encode())


if __name__ == "__main__":
    main()

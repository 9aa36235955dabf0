"""Every number of docs/comparison.md: all methods on all benchmarks, resumed where it was stopped.

    python experiments/all.py --device cuda --out results/comparison

The same as `conceptors all`; `--help` explains the rest.
"""

import sys

from conceptors.experiments.all import main

if __name__ == "__main__":
    sys.exit(main())

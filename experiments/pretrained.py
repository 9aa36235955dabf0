"""A pretrained sentence encoder learns ten domains in turn: the table of docs/pretrained.md.

    python experiments/pretrained.py --device cuda --page docs/pretrained.md

Chooses settings on validation sentences, tests them with five seeds, times every method alone, and
writes OUT/results.json and the page. Started again, it goes on. `--minutes 9` begins nothing after
nine minutes. Rows that need peft are skipped where it cannot be imported.
"""

from __future__ import annotations

from conceptors.bench.pretrained.main import main

if __name__ == "__main__":
    main()

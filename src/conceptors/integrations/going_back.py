"""A checkpoint that knows fewer tasks than the shield it is loaded into."""

from __future__ import annotations

import warnings

from conceptors._internal.outside import outside
from conceptors.shield import Shield, UnprotectedWarning


def warn_if_back(shield: Shield, before: int, remedy: str) -> None:
    """Say that tasks were lost when a checkpoint was loaded.

    Args:
        before: how many tasks the shield had remembered until then.
    """
    if shield.n_tasks < before:
        warnings.warn(
            f"the shield had remembered {before} tasks, and the checkpoint that was resumed knows "
            f"{shield.n_tasks} of them: later ones are not protected any more. {remedy}",
            UnprotectedWarning,
            stacklevel=outside(),
        )

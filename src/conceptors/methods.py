"""Methods of learning tasks in sequence: the public path of `conceptors.experiments.methods`."""

from conceptors.experiments.methods import (
    METHODS,
    Learner,
    OwnSettings,
    Settings,
    add,
    parse_settings,
    setting,
)

__all__ = ["METHODS", "Learner", "OwnSettings", "Settings", "add", "parse_settings", "setting"]

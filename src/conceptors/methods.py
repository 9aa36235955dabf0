"""Methods of learning tasks in sequence: the public path of `conceptors.experiments.methods`."""

from conceptors.experiments.methods import METHODS, add
from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.settings import OwnSettings, Settings, parse_settings, setting

__all__ = ["METHODS", "Learner", "OwnSettings", "Settings", "add", "parse_settings", "setting"]

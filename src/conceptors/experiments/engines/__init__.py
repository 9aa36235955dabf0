"""Where experiments are run: in this process, in several, or on a Ray cluster."""

from conceptors.experiments.engines.base import Engine, Job, Outcome
from conceptors.experiments.engines.local import Local
from conceptors.experiments.engines.ray import Ray

__all__ = ["Engine", "Job", "Local", "Outcome", "Ray"]

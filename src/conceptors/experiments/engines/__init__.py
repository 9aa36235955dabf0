"""Where experiments run: in this process, in several processes, or on a Ray cluster."""

from conceptors.experiments.engines.local import Engine, Job, Local, Outcome
from conceptors.experiments.engines.ray import Ray

__all__ = ["Engine", "Job", "Local", "Outcome", "Ray"]

"""Where experiments are run: in this process, on a Ray cluster, or on a Slurm cluster."""

from conceptors.experiments.engines.base import Engine, Finished, Job
from conceptors.experiments.engines.local import Local
from conceptors.experiments.engines.ray import Ray
from conceptors.experiments.engines.remote import Resources
from conceptors.experiments.engines.slurm import Slurm

__all__ = ["Engine", "Finished", "Job", "Local", "Ray", "Resources", "Slurm"]

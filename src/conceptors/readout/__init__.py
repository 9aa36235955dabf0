"""A linear readout in closed form, and the features that it can learn on."""

from conceptors.readout.features import Lift, RandomFeatures, Scaling, SideBySide
from conceptors.readout.network import LayerInputs
from conceptors.readout.patches import PatchFeatures
from conceptors.readout.readout import Readout
from conceptors.readout.sums import Sums

__all__ = ["LayerInputs", "Lift", "PatchFeatures", "RandomFeatures", "Readout", "Scaling"]
__all__ += ["SideBySide", "Sums"]

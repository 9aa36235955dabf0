"""Methods by name; `add` makes one's own known."""

from conceptors.experiments.methods.base import Learner, Settings, parse_settings
from conceptors.experiments.methods.cab import Cab
from conceptors.experiments.methods.conceptor_ridge import ConceptorRidgeMethod
from conceptors.experiments.methods.ewc import Ewc
from conceptors.experiments.methods.imm import Imm
from conceptors.experiments.methods.joint import Joint

METHODS: dict[str, type[Learner]] = {}


def add(method: type[Learner]) -> type[Learner]:
    """Make a method known by its `name` (usable as a class decorator)."""
    if method.name in METHODS and METHODS[method.name] is not method:
        raise ValueError(f"there is a method {method.name!r} already")
    METHODS[method.name] = method
    return method


for _method in (Learner, Joint, Cab, Ewc, Imm, ConceptorRidgeMethod):
    add(_method)

__all__ = ["METHODS", "Learner", "Settings", "add", "parse_settings"]

"""Methods by name; `add` makes one's own known."""

from conceptors.methods.base import Learner, Settings, parse_settings
from conceptors.methods.cab import Cab
from conceptors.methods.conceptor_ridge import ConceptorRidgeMethod
from conceptors.methods.ewc import Ewc
from conceptors.methods.imm import Imm
from conceptors.methods.joint import Joint

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

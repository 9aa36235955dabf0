"""Methods by name; `add` makes one's own known."""

from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.cab import Cab
from conceptors.experiments.methods.conceptor_ridge import ConceptorRidgeMethod
from conceptors.experiments.methods.ewc import Ewc
from conceptors.experiments.methods.imm import Imm
from conceptors.experiments.methods.joint import Joint
from conceptors.experiments.methods.own import import_methods
from conceptors.experiments.methods.settings import (
    Settings,
    explain_settings,
    parse_settings,
    setting,
)

METHODS: dict[str, type[Learner]] = {}


def add(method: type[Learner]) -> type[Learner]:
    """Make a method known by its `name` (usable as a class decorator)."""
    if method.name in METHODS and METHODS[method.name] is not method:
        raise ValueError(f"there is a method {method.name!r} already")
    METHODS[method.name] = method
    return method


for _method in (Learner, Joint, Cab, Ewc, Imm, ConceptorRidgeMethod):
    add(_method)

__all__ = [
    "METHODS",
    "Learner",
    "Settings",
    "add",
    "explain_settings",
    "import_methods",
    "parse_settings",
    "setting",
]

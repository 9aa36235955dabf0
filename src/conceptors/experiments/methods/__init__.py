"""Methods by name; `add` makes one's own known."""

from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.bounds import Joint, Separate
from conceptors.experiments.methods.cab import Cab, Shielded
from conceptors.experiments.methods.closed.lda import Klda, Ncm, Slda
from conceptors.experiments.methods.closed.readout import ReadoutMethod
from conceptors.experiments.methods.closed.ridge import Acil, Ranpac
from conceptors.experiments.methods.ewc import Ewc
from conceptors.experiments.methods.imm import Imm
from conceptors.experiments.methods.own import import_methods
from conceptors.experiments.methods.relatives.codecl import CodeCl
from conceptors.experiments.methods.relatives.gpm import Gpm, Sgp
from conceptors.experiments.methods.relatives.owm import Owm
from conceptors.experiments.methods.relatives.trgp import Trgp
from conceptors.experiments.methods.settings import (
    OwnSettings,
    Settings,
    explain_settings,
    parse_settings,
    setting,
)
from conceptors.experiments.methods.with_readout import CabReadout, ShieldReadout
from conceptors.experiments.results import check_name

METHODS: dict[str, type[Learner]] = {}


def add(method: type[Learner]) -> type[Learner]:
    """Make a method known by its `name` (usable as a class decorator)."""
    if method.name in METHODS and METHODS[method.name] is not method:
        raise ValueError(f"there is a method {method.name!r} already")
    check_name(method.name, method.__name__)
    METHODS[method.name] = method
    return method


_SHIELDED = (Cab, CabReadout, Shielded, ShieldReadout)
_TRAINED = (Learner, Joint, Separate, *_SHIELDED, Ewc, Imm, Owm, Gpm, Sgp, Trgp, CodeCl)
_CLOSED = (ReadoutMethod, Ncm, Slda, Klda, Ranpac, Acil)
for _method in (*_TRAINED, *_CLOSED):
    add(_method)

__all__ = [
    "METHODS",
    "Learner",
    "OwnSettings",
    "Settings",
    "add",
    "explain_settings",
    "import_methods",
    "parse_settings",
    "setting",
]

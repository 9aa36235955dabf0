"""Methods by name; `add` makes one's own known."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.bounds import Joint, Separate
from conceptors.experiments.methods.cab import Cab, Shielded
from conceptors.experiments.methods.codecl import CodeCl
from conceptors.experiments.methods.ewc import Ewc
from conceptors.experiments.methods.gpm import Gpm, Sgp
from conceptors.experiments.methods.imm import Imm
from conceptors.experiments.methods.linear import Acil, Klda, Ncm, Ranpac, Slda
from conceptors.experiments.methods.owm import Owm
from conceptors.experiments.methods.readout import ReadoutMethod
from conceptors.experiments.methods.trgp import Trgp
from conceptors.experiments.methods.with_readout import CabReadout, ShieldReadout

_SHIELDED = (Cab, CabReadout, Shielded, ShieldReadout)
_TRAINED = (Learner, Joint, Separate, *_SHIELDED, Ewc, Imm, Owm, Gpm, Sgp, Trgp, CodeCl)
_CLOSED = (ReadoutMethod, Ncm, Slda, Klda, Ranpac, Acil)
METHODS: dict[str, type[Learner]] = {method.name: method for method in (*_TRAINED, *_CLOSED)}


def add(method: type[Learner]) -> type[Learner]:
    """Make a method known by its `name` (usable as a class decorator)."""
    if method.name in METHODS and METHODS[method.name] is not method:
        raise ValueError(f"there is a method {method.name!r} already")
    METHODS[method.name] = method
    return method


def import_methods(file: str | Path) -> None:
    """Run a Python file that registers methods with `conceptors.methods.add`; once only.

    Raises:
        ValueError: no such file.
    """
    path = Path(file).expanduser().resolve()
    name = f"conceptors_import:{path}"
    if name in sys.modules:
        return
    spec = spec_from_file_location(name, path) if path.suffix == ".py" and path.is_file() else None
    if spec is None or spec.loader is None:
        raise ValueError(f"--import takes a Python file, and there is no file {str(file)!r}")
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise

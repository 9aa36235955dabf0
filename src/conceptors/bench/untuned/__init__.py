"""untuned: what `Shield(model)` reaches with nothing chosen, on sequences people meet first."""

from conceptors.bench.untuned.suite import untuned

__all__ = ["untuned"]

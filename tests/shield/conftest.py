"""No test here is about the warning of full layers, which small ones become soon."""

from shield.common import never_full

__all__ = ["never_full"]

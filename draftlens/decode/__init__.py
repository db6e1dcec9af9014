"""The decoding loop and its state."""

from draftlens.decode.serial import decode
from draftlens.decode.session import Session

__all__ = ["Session", "decode"]

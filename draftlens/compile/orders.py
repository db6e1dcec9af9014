"""What the compiling process is told, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from draftlens.compile.shapes import PassShape
from draftlens.compile.skeleton import Skeleton


@dataclass(frozen=True)
class Order:
    """A pass to compile.

    Args:
        skeleton: of the model.
        shape: the kind of pass.
        path: of the file to write.
    """

    skeleton: Skeleton
    shape: PassShape
    path: Path


@dataclass(frozen=True)
class Built:
    """An order was carried out.

    Args:
        seconds: that it took.
        failure: why there is no file; empty if there is one.
    """

    seconds: float
    failure: str = ""

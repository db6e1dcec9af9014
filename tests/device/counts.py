"""What is counted: launches, waits of the host with the lines that cause them, and bytes."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import draftlens

LIBRARY = str(Path(draftlens.__file__).parent)
HERE = Path(__file__).parent
ELSEWHERE = (
    str(Path(torch.__file__).parent),
    *(str(HERE / f"{name}.py") for name in ("counts", "machine", "runtime", "streams")),
)
"""Files that are no cause of a wait."""

_IN_MODULES = threading.local()


class within_modules:  # noqa: N801 - a context, without the cost of a generator
    """Entered around the call of a module: launches inside belong to a model's forward."""

    def __enter__(self) -> None:
        _IN_MODULES.depth = getattr(_IN_MODULES, "depth", 0) + 1

    def __exit__(self, *error: object) -> None:
        _IN_MODULES.depth -= 1


def is_within_modules() -> bool:
    return getattr(_IN_MODULES, "depth", 0) > 0


@dataclass
class Counts:
    """Work of the devices so far.

    Attributes:
        launches: by operator.
        outside: the same, without those inside modules of models.
        waits: times that the host waited for a device, by operator and line.
        read_bytes, written_bytes: by kernels.
        transfers: bytes by direction, such as `cuda:0 to cpu`.
    """

    launches: Counter[str] = field(default_factory=Counter)
    outside: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    read_bytes: int = 0
    written_bytes: int = 0
    transfers: Counter[str] = field(default_factory=Counter)

    def launched(self, name: str, kernels: int, read: int, written: int) -> None:
        self.launches[name] += kernels
        if not is_within_modules():
            self.outside[name] += kernels
        self.read_bytes += read
        self.written_bytes += written

    @property
    def own_waits(self) -> int:
        """Waits in lines of the library itself, without those of models and processors."""
        return sum(number for line, number in self.waits.items() if " for " not in line)

    def waited(self, name: str) -> None:
        self.waits[f"{name} at {cause()}"] += 1

    def copy(self) -> Counts:
        return Counts(
            Counter(self.launches),
            Counter(self.outside),
            Counter(self.waits),
            self.read_bytes,
            self.written_bytes,
            Counter(self.transfers),
        )

    def since(self, earlier: Counts) -> Counts:
        return Counts(
            self.launches - earlier.launches,
            self.outside - earlier.outside,
            self.waits - earlier.waits,
            self.read_bytes - earlier.read_bytes,
            self.written_bytes - earlier.written_bytes,
            self.transfers - earlier.transfers,
        )


def cause() -> str:
    """The innermost line of Python outside of torch that is running: of the library, or of another
    package with the line of the library that called it."""
    frame: Any = sys._getframe(1)
    other = ""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(LIBRARY):
            line = f"{Path(file).relative_to(LIBRARY)}:{frame.f_lineno}"
            return f"{other} for {line}" if other else line
        if not other and not file.startswith(ELSEWHERE):
            other = f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return f"{other} for a caller"


@dataclass(frozen=True)
class Round:
    """The numbers of one round, or of a prompt."""

    launches: int
    outside: int
    waits: int
    own_waits: int  # of lines of the library, not of the models
    counts: Counts
    rows: int  # that gained tokens


def rounds_of(counts: Counts, steps: Iterable[Sequence[Any]]) -> list[Round]:
    """What happened up to each step of an answer: the first is the prompt."""
    moments, rows = [counts.copy()], []
    for chunks in steps:
        rows.append(len(chunks))
        moments.append(counts.copy())
    spans = [after.since(before) for before, after in pairwise(moments)]
    return [
        Round(
            span.launches.total(),
            span.outside.total(),
            span.waits.total(),
            span.own_waits,
            span,
            num_rows,
        )
        for span, num_rows in zip(spans, rows, strict=True)
    ]

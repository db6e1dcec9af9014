"""The schedule `parallel`: the serial loop with a draft worker that writes meanwhile, and the cores
that the target leaves to the worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import cast

import torch

from draftlens.core.locks import ForkLock
from draftlens.core.result import Chunk
from draftlens.decoding import loop as serial
from draftlens.decoding.plan import DraftWorker
from draftlens.decoding.session import Session

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_QUOTA_V1 = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
_PERIOD_V1 = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def decode(session: Session) -> Iterator[Chunk]:
    """As `decoding.loop.decode`; closes the draft worker at the end, and leaves cores to it as long
    as it drafts."""
    worker = cast(DraftWorker, session.drafter)
    with closing(worker.attached(session)) as rounds, closing(serial.decode(session)) as chunks:
        next(rounds)
        for chunk in chunks:
            next(rounds)
            yield chunk


class TargetShare:
    """The number of threads of the target while other processes draft.

    Torch has one number of threads for the whole process, so the first session that leaves cores to
    a worker lowers it, and the last one that ends restores it.
    """

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._left: dict[object, int] = {}
        self._before: int | None = None

    @contextmanager
    def held(self, cores_of_others: int) -> Iterator[Callable[[int], None]]:
        """Leave some cores to other processes; never fewer than one thread remains.

        Yields:
            A function that changes the number of cores, such as to 0 when the worker is lost.
        """
        holder = object()

        def leave(cores: int) -> None:
            if self._left.get(holder, 0) == cores:
                return
            with self._lock:
                self._left[holder] = cores
                self._set_threads()

        leave(cores_of_others)
        try:
            yield leave
        finally:
            leave(0)
            self._left.pop(holder, None)

    def _set_threads(self) -> None:
        num_reserved = max(self._left.values())
        if num_reserved:
            if self._before is None:
                self._before = torch.get_num_threads()
            num_threads = max(1, usable_cores() - num_reserved)
            torch.set_num_threads(min(self._before, num_threads))
        elif self._before is not None:
            torch.set_num_threads(self._before)
            self._before = None


TARGET_SHARE = TargetShare()


def usable_cores() -> int:
    """Cores of this process: those of its affinity, at most its container's quota, rounded down."""
    allowed = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    quota = _quota()
    if quota is not None:
        allowed = min(allowed, int(quota))
    return max(1, allowed)


def _quota() -> float | None:
    """Cores that the container's quota grants; None without one."""
    try:
        if _QUOTA.exists():
            limit, period = _QUOTA.read_text().split()
            return None if limit == "max" else int(limit) / int(period)
        limit_v1 = int(_QUOTA_V1.read_text())
        return None if limit_v1 <= 0 else limit_v1 / int(_PERIOD_V1.read_text())
    except (OSError, ValueError):
        return None

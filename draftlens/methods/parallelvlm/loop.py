"""The schedule `parallel`: the serial loop with a draft worker that writes meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import cast

import torch

from draftlens.core.locks import ForkLock
from draftlens.core.result import Chunk
from draftlens.decoding import loop as serial
from draftlens.decoding.session import Session, SessionHooks
from draftlens.methods.parallelvlm.drafters import ParallelDrafter, usable_cores


def decode(session: Session) -> Iterator[Chunk]:
    """As `decoding.loop.decode`; closes the draft worker at the end, and leaves cores to it as long
    as it drafts."""
    drafter = cast(ParallelDrafter, session.drafter)
    ahead = drafter.ahead
    session.hooks = SessionHooks(drafter.announce, ahead.read, ahead.next_proposals)
    with TARGET_SHARE.held(ahead.cores) as leave_cores:
        try:
            with closing(serial.decode(session)) as chunks:
                for chunk in chunks:
                    ahead.record(session.clock)
                    leave_cores(ahead.cores)
                    yield chunk
        finally:
            ahead.close()
            ahead.record(session.clock)


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

"""Jobs of schedulers, and schedulers that run round by round."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Queue
from typing import Any

import pytest
from families import FAMILIES, inputs
from stock import NEW, target

import draftlens
from draftlens.decoding.admission import NAMESPACE
from draftlens.decoding.session import Session
from draftlens.methods.base import from_dict
from draftlens.request import Request
from draftlens.scheduling import Job, Scheduler, Update

FAMILY = next(family for family in FAMILIES if family.name == "llava_onevision")
METHOD = from_dict({"method": "speculative", "num_speculative_tokens": 3})
SAMPLED = {"do_sample": True, "top_k": 40, "temperature": 1.3}
WAIT = 30.0

Start = Callable[..., Scheduler]


class Caller:
    """A job about one row of the family's richest input, and its updates."""

    def __init__(
        self,
        row: int,
        *,
        new: int = NEW,
        seed: int = 0,
        samples: int = 1,
        client: str = "",
        method: Any = METHOD,
        namespace: str | None = None,
        **options: Any,
    ) -> None:
        self.row = row
        given = inputs(FAMILY, FAMILY.richest, (row,))
        options = {"max_new_tokens": new, "do_sample": False, **options}
        extras = {NAMESPACE: namespace}
        request = Request(given, method=method, seed=seed, options=options, extras=extras)
        self.updates: Queue[Update] = Queue()
        self.job = Job(request, self.updates.put, samples=samples, client=client)

    def heard(self) -> list[list[int]]:
        """The tokens of each row, once all have ended; raises the job's error."""
        rows: list[list[int]] = [[] for _ in range(self.job.num_rows)]
        while True:
            update = self.updates.get(timeout=WAIT)
            if update.error is not None:
                raise update.error
            for chunk in update.chunks:
                rows[chunk.row] += chunk.tokens
            if update.done:
                assert rows == [sequence.tokens for sequence in self.job.sequences]
                return rows


def alone(row: int, seed: int) -> list[int]:
    """What a row draws by itself."""
    given = inputs(FAMILY, FAMILY.richest, (row,))
    result = draftlens.generate(
        target(FAMILY), given, method="plain", seed=seed, max_new_tokens=NEW, **SAMPLED
    )
    return result.tokens[0]


class Gate:
    """Lets a scheduler run round by round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._permits = threading.Semaphore(0)
        self.is_open = False
        self.reached = threading.Event()
        check = Session.check

        def wait(session: Session, tree: Any) -> Any:
            self.reached.set()
            if not self.is_open:
                assert self._permits.acquire(timeout=WAIT)
            return check(session, tree)

        monkeypatch.setattr(Session, "check", wait)

    def let(self, rounds: int) -> None:
        for _ in range(rounds):
            self._permits.release()

    def open(self) -> None:
        self.is_open = True
        self._permits.release()

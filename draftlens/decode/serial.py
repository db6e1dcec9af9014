"""The serial schedule: draft, then verify, then draft again. Plain decoding is this loop with an
empty tree."""

from __future__ import annotations

from collections.abc import Iterator

from draftlens.core.result import Chunk
from draftlens.decode.session import Session


def decode(session: Session) -> Iterator[Chunk]:
    """Answer one batch; yields what each round adds to each row.

    A consumer may stop at any chunk: the session's rows and caches agree with each other after
    every round.
    """
    yield from session.start()
    session.begin()
    while not session.done:
        tree = session.propose()
        verdict = session.check(tree)
        yield from session.accept(verdict)

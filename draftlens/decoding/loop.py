"""The serial schedule: draft, then verify, then draft again. Plain decoding is this loop with an
empty tree."""

from __future__ import annotations

from collections.abc import Generator

from draftlens.core.result import Chunk
from draftlens.decoding.session import Session


def decode(session: Session) -> Generator[Chunk, None, None]:
    """Answer all requests of a session; yields the new tokens of each row, round by round.

    A consumer may stop at any chunk, and requests may be added and removed between chunks: the
    session's sequences and caches agree with each other after every round.
    """
    while not session.done:
        yield from session.start()
        if session.running:
            session.begin()
            tree = session.propose()
            verdict = session.check(tree)
            yield from session.accept(verdict)

"""The serial schedule: draft, then verify, then draft again. Plain decoding is this loop with an
empty tree."""

from __future__ import annotations

from collections.abc import Generator

from draftlens.core.result import Chunk
from draftlens.decoding.session import Session


def decode(session: Session) -> Generator[Chunk, None, None]:
    """Answer all requests of a session; yields the new tokens of each row, round by round.

    A consumer may stop at any chunk, and requests may be added and removed between chunks: the
    session's sequences and caches agree with each other after every step.
    """
    while not session.done:
        yield from step(session)


def step(session: Session) -> list[Chunk]:
    """Read the requests that wait, or a part of a long prompt; unless a row got its first token by
    it, run one round of the running rows.

    A scheduler that serves many requests calls this directly, and adds requests in between.
    """
    chunks = session.start() if session.waiting else []
    if chunks or not session.running:
        return chunks
    session.begin()
    tree = session.propose()
    verdict = session.check(tree)
    return session.accept(verdict)

"""The schedule `parallel`: the serial loop with a draft worker that writes meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import cast

from draftlens.core.result import Chunk
from draftlens.decoding import loop as serial
from draftlens.decoding.session import Session, SessionHooks
from draftlens.methods.parallelvlm.cores import TARGET_SHARE
from draftlens.methods.parallelvlm.target_side import ParallelDrafter


def decode(session: Session) -> Iterator[Chunk]:
    """As `decoding.loop.decode`; closes the draft worker at the end, and leaves cores to it as long
    as it drafts."""
    drafter = cast(ParallelDrafter, session.drafter)
    session.hooks = SessionHooks(drafter.announce, drafter.read, drafter.next_proposals)
    with TARGET_SHARE.held(drafter.cores) as leave_cores:
        try:
            with closing(serial.decode(session)) as chunks:
                for chunk in chunks:
                    drafter.record(session.clock)
                    leave_cores(drafter.cores)
                    yield chunk
        finally:
            drafter.close()
            drafter.record(session.clock)

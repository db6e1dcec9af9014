"""The schedule `parallel`: the serial loop with a drafter whose worker writes meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from draftlens.core.result import Chunk
from draftlens.decoding import loop as serial
from draftlens.decoding.session import Session
from draftlens.methods.parallelvlm.cores import TARGET_SHARE


def decode(session: Session) -> Iterator[Chunk]:
    """As `decoding.loop.decode`; closes the draft worker at the end, and leaves cores to it as long
    as it drafts."""
    with TARGET_SHARE.held(session.cores_of_draft) as leave_cores:
        try:
            with closing(serial.decode(session)) as chunks:
                for chunk in chunks:
                    leave_cores(session.cores_of_draft)
                    yield chunk
        finally:
            session.close()

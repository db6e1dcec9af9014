"""The parallel schedule: the draft works in a lane of its own while the target reads and checks.

The steps are those of the serial loop. The target's lane never drafts: its drafter
(`lanes.ParallelDrafter`) returns guesses that the other lane has written meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from draftlens.core.result import Chunk
from draftlens.decoding import loop as serial
from draftlens.decoding.session import Session
from draftlens.methods.parallelvlm.cores import TARGET_SHARE


def decode(session: Session) -> Iterator[Chunk]:
    """As `decoding.loop.decode`. The lane is told when the answers have ended or the consumer
    stops. Cores that are left to it are taken back where it is lost or not used at all."""
    with TARGET_SHARE.held(session.cores_of_draft) as leave_cores:
        try:
            with closing(serial.decode(session)) as chunks:
                for chunk in chunks:
                    leave_cores(session.cores_of_draft)
                    yield chunk
        finally:
            session.close()

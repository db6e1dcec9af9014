"""The parallel schedule: the draft works in a lane of its own while the target reads and checks.

The steps are those of the serial loop. The target's lane never drafts: its drafter
(`LaneDrafter`) returns draft tokens that the other lane has written meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import cast

from draftlens.core.result import Chunk
from draftlens.decoding import loop as serial
from draftlens.decoding.session import Session, SessionHooks
from draftlens.methods.parallelvlm.cores import TARGET_SHARE
from draftlens.methods.parallelvlm.target_side import LaneDrafter


def decode(session: Session) -> Iterator[Chunk]:
    """As `decoding.loop.decode`, with a `LaneDrafter`.

    Closes the lane at the end and restores torch's number of threads, which is also restored where
    the lane is lost or not used at all.
    """
    drafter = cast(LaneDrafter, session.drafter)
    session.hooks = SessionHooks(drafter.announce, drafter.read, drafter.next_guesses)
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

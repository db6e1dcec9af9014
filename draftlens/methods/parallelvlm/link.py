"""The way to a draft worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draftlens.core.errors import DraftlensError
from draftlens.methods.parallelvlm.messages import FromDraft, ToDraft


class WorkerLostError(DraftlensError):
    """The draft worker has died, hangs or never came up. The target goes on without it."""


class Link(Protocol):
    """Connects sessions with a draft worker."""

    cores: int
    """Cores that the worker keeps busy and the target leaves alone."""

    @property
    def processes(self) -> Sequence[int]:
        """The ids of other processes that work for the worker."""
        ...

    def wait_until_ready(self) -> None:
        """Wait until the worker can draft, or is lost."""
        ...

    def new_answer(self) -> int:
        """A number for a session, which no other session of the worker has.

        Raises:
            WorkerLostError: the worker cannot be reached.
        """
        ...

    def send(self, message: ToDraft) -> None:
        """Send a message.

        Raises:
            WorkerLostError: the worker cannot be reached.
            TypeError, AttributeError, pickle.PicklingError: the message cannot be sent to another
                process. Nothing was sent.
        """
        ...

    def forget(self, answer: int) -> None:
        """A session has ended: its further messages are dropped."""
        ...

    def receive(self, answer: int, timeout: float) -> list[FromDraft]:
        """The messages for a session that have come, in order.

        Args:
            answer: the session.
            timeout: seconds to wait for the first one; 0 for none.

        Raises:
            WorkerLostError: the worker cannot be reached.
        """
        ...

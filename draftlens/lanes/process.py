"""A drafting lane in a process of its own, kept from answer to answer."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from typing import Any, NoReturn

import psutil

from draftlens.lanes.channel import Channel, ClosedError
from draftlens.lanes.link import LaneLostError
from draftlens.lanes.messages import FromDraft, ToDraft
from draftlens.lanes.parcels import pack
from draftlens.lanes.shared_model import share

logger = logging.getLogger("draftlens")

THREADS = 1
"""Threads of the drafting process."""

CHECK_SECONDS = 0.2
"""Time between two looks at a process that is silent."""

_START = (
    "import sys; sys.path[:] = {path!r}; "
    "from draftlens.lanes.child import main; main({descriptor}, {threads})"
)


class DraftProcess:
    """A process that drafts with one model for any number of sessions.

    It starts at once and loads its libraries (some seconds) while the caller goes on; messages wait
    until it is ready. It is no fork and no spawned copy of the caller's main module, so scripts
    without a main guard, notebooks and daemonic parents work. It ends with the last reference to
    this object, with the model, or with this process, however this process ends.

    Args:
        model: a transformers model on the CPU. Its weights move to memory that both processes map.

    Raises:
        LaneLostError: the model cannot be sent to another process, or the process cannot start.
    """

    cores = THREADS

    def __init__(self, model: Any) -> None:
        self._numbers = itertools.count()
        self._inboxes: dict[int, deque[FromDraft]] = {}
        self._using = threading.Lock()
        self._looked_at = time.monotonic()
        self.lost: str | None = None
        self.is_ready = False
        try:
            parcel = share(model)
        except (TypeError, AttributeError, ValueError, pickle.PicklingError) as error:
            raise LaneLostError(f"the model cannot be sent to another process: {error}") from error
        self._channel, theirs = Channel.pair()
        try:
            self._process = _start(theirs.fileno())
        except OSError as error:
            raise LaneLostError(f"no process could be started: {error}") from error
        finally:
            theirs.close()
        self._watched = psutil.Process(self._process.pid)
        self._finalizer = weakref.finalize(self, _end, self._channel, self._process)
        self._channel.send_parcel(parcel)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def processes(self) -> tuple[int, ...]:
        """See `Link.processes`."""
        return (self.pid,)

    def new_answer(self) -> int:
        """See `Link.new_answer`."""
        self._check()
        number = next(self._numbers)
        self._inboxes[number] = deque()
        return number

    def send(self, message: ToDraft) -> None:
        """See `Link.send`."""
        if self.lost is not None:
            raise LaneLostError(self.lost)
        parcel = pack(message)
        try:
            with self._using:
                self._channel.send_parcel(parcel)
        except ClosedError:
            self._lose(self._how_it_ended())

    def receive(self, answer: int, timeout: float) -> list[FromDraft]:
        """See `Link.receive`. Messages for other sessions are kept for them."""
        inbox = self._inboxes[answer]
        end = time.monotonic() + timeout
        while self._read(0.0):
            pass
        while not inbox:
            left = end - time.monotonic()
            if left <= 0:
                self._check_now_and_then()
                return []
            # Another thread may receive the message for this one.
            self._read(min(left, CHECK_SECONDS / 10))
        messages = []
        while inbox:
            messages.append(inbox.popleft())
        return messages

    def forget(self, answer: int) -> None:
        """A session has ended."""
        self._inboxes.pop(answer, None)

    def close(self) -> None:
        """End the process."""
        self.lost = self.lost or "it was ended"
        self._finalizer()

    def _read(self, timeout: float) -> bool:
        """Receive one message; whether there was one in time. Threads wait without the lock, so
        that none holds up another."""
        self._channel.wait(timeout)
        try:
            with self._using:
                if self.lost is not None:
                    raise LaneLostError(self.lost)
                message = self._channel.receive(0.0)
        except TimeoutError:
            return False
        except ClosedError:
            self._lose(self._how_it_ended())
        if isinstance(message, int):
            self.is_ready = True
            return True
        inbox = self._inboxes.get(message.answer)
        if inbox is not None:
            inbox.append(message)
        return True

    def _check_now_and_then(self) -> None:
        now = time.monotonic()
        if now - self._looked_at > CHECK_SECONDS:
            self._looked_at = now
            self._check()

    def _check(self) -> None:
        """Raise if the process has ended or does not run."""
        if self.lost is not None:
            raise LaneLostError(self.lost)
        try:
            status = self._watched.status()
        except psutil.NoSuchProcess:
            status = psutil.STATUS_ZOMBIE
        if status == psutil.STATUS_ZOMBIE:
            self._lose(self._how_it_ended())
        if status == psutil.STATUS_STOPPED:
            self._lose("the drafting process is stopped")

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            return "the drafting process does not answer"
        if code < 0:
            return f"the drafting process was ended by signal {-code}"
        return f"the drafting process has ended with status {code}"

    def _lose(self, why: str) -> NoReturn:
        self.lost = why
        self._finalizer()
        raise LaneLostError(why)


def _start(descriptor: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS)}
    path = [str(Path(entry).absolute()) for entry in sys.path]
    code = _START.format(path=path, descriptor=descriptor, threads=THREADS)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        pass_fds=[descriptor],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def _end(channel: Channel, process: subprocess.Popen[bytes]) -> None:
    """End a process at once: it holds nothing that could be lost."""
    channel.close()
    process.kill()
    process.wait()


_PROCESSES: weakref.WeakKeyDictionary[Any, DraftProcess] = weakref.WeakKeyDictionary()
_STARTING = threading.Lock()


def process_of(model: Any) -> DraftProcess:
    """The process that drafts with a model; a new one if there is none or it was lost.

    Raises:
        LaneLostError: none can be started.
    """
    with _STARTING:
        process = _PROCESSES.get(model)
        if process is None or process.lost is not None:
            process = DraftProcess(model)
            _PROCESSES[model] = process
        return process


@atexit.register
def _end_all() -> None:
    for process in list(_PROCESSES.values()):
        process.close()

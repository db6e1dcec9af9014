"""A draft worker in a process of its own, kept from answer to answer."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import pickle
import subprocess
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from typing import Any, NoReturn

import psutil

from draftlens.methods.parallelvlm.messages import FromDraft, ToDraft, WorkerLostError
from draftlens.models.model_state import Slot
from draftlens.processes.channel import Channel, ClosedError
from draftlens.processes.child import connected, start_child
from draftlens.processes.shared_model import share
from draftlens.processes.shared_tensors import pack

logger = logging.getLogger("draftlens")

THREADS = 1  # of the drafting process
CHECK_SECONDS = 0.2  # between liveness checks of a silent process


class DraftProcess:
    """A process that drafts with one model for any number of sessions.

    It starts at once and loads its libraries (some seconds) while the caller goes on; messages wait
    until it is ready. It is no fork and no spawned copy of the caller's main module, so scripts
    without a main guard, notebooks and daemonic parents work. It ends with the last reference to
    this object, with the model, or with this process, however this process ends. Forks of this
    process start a process of their own. The weights of the model, a transformers model on the CPU,
    move to memory that both processes map.

    Raises:
        WorkerLostError: the model cannot be sent to another process, or the process cannot start.
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
        except (TypeError, AttributeError, ValueError, OSError, pickle.PicklingError) as error:
            raise WorkerLostError(
                f"the model cannot be sent to another process: {error}"
            ) from error
        try:
            ours, self._process = connected(_start)
        except OSError as error:
            parcel.close()
            raise WorkerLostError(f"no process could be started: {error}") from error
        self._channel = Channel(ours)
        self._finalizer = weakref.finalize(
            self, _end, self._channel, self._process, owner=os.getpid()
        )
        self._watched = psutil.Process(self._process.pid)
        try:
            self._channel.send_parcel(parcel)
        except ClosedError:
            self._lose(self._how_it_ended())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def processes(self) -> tuple[int, ...]:
        return (self.pid,)

    @property
    def is_alive(self) -> bool:
        try:
            self._check()
        except WorkerLostError:
            return False
        return True

    @property
    def cannot_start(self) -> bool:
        """Whether the process failed by itself before it was ready: another one would fail too."""
        status = self._process.returncode
        return self.lost is not None and not self.is_ready and status is not None and status > 0

    def wait_until_ready(self) -> None:
        while self.is_alive and not self.is_ready:
            with suppress(WorkerLostError):
                self._read(CHECK_SECONDS)

    def new_answer(self) -> int:
        self._check()
        number = next(self._numbers)
        self._inboxes[number] = deque()
        return number

    def send(self, message: ToDraft) -> None:
        if self.lost is not None:
            raise WorkerLostError(self.lost)
        try:
            parcel = pack(message)
        except OSError as error:
            raise WorkerLostError(f"no memory for a message could be had: {error}") from error
        try:
            with self._using:
                self._channel.send_parcel(parcel)
        except ClosedError:
            self._lose(self._how_it_ended())

    def receive(self, answer: int, timeout: float) -> list[FromDraft]:
        """Messages for other sessions are kept for them."""
        inbox = self._inboxes[answer]
        end = time.monotonic() + timeout
        while self._read(0.0):
            pass
        while not inbox:
            remaining = end - time.monotonic()
            if remaining <= 0:
                self._check_now_and_then()
                return []
            # Another thread may receive the message for this one.
            self._read(min(remaining, CHECK_SECONDS / 10))
        messages = []
        while inbox:
            messages.append(inbox.popleft())
        return messages

    def forget(self, answer: int) -> None:
        self._inboxes.pop(answer, None)

    def close(self) -> None:
        self.lost = self.lost or "it was ended"
        self._finalizer()

    def leave_to_parent(self) -> None:
        """In a fork of the process that started it: leave the drafting process to that one."""
        self.lost = "it belongs to the process that this one is a fork of"
        self._finalizer()

    def _read(self, timeout: float) -> bool:
        """Receive one message; false if none comes. Threads wait without holding the lock."""
        try:
            self._channel.wait(timeout)
            with self._using:
                if self.lost is not None:
                    raise WorkerLostError(self.lost)
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
            raise WorkerLostError(self.lost)
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
        self.lost = self.lost or why
        self._finalizer()
        raise WorkerLostError(self.lost)


def _start(descriptor: int) -> subprocess.Popen[bytes]:
    return start_child(descriptor, "draftlens.methods.parallelvlm.child", THREADS)


def _end(channel: Channel, process: subprocess.Popen[bytes], owner: int) -> None:
    """End a process at once: it has no state to save. Forks only close their channel."""
    channel.close()
    if os.getpid() == owner:
        process.kill()
        process.wait()


_PROCESS = Slot[DraftProcess]("process that drafts")


class _Processes:
    def __init__(self) -> None:
        self._starting = threading.Lock()

    def of(self, model: Any) -> DraftProcess:
        with self._starting:
            process = _PROCESS.get(model)
            if process is not None and process.is_alive:
                return process
            if process is not None and process.cannot_start:
                raise WorkerLostError(f"{process.lost} before it was ready")
            process = DraftProcess(model)
            _PROCESS.set(model, process)
            return process

    def end(self) -> None:
        for process in _PROCESS.values():
            process.close()

    def leave_to_parent(self) -> None:
        """In a fork, which must neither use its parent's processes nor keep them alive."""
        self._starting = threading.Lock()  # another thread of the parent may have held it
        for process in _PROCESS.values():
            process.leave_to_parent()
        _PROCESS.clear()


_PROCESSES = _Processes()
atexit.register(_PROCESSES.end)
os.register_at_fork(after_in_child=_PROCESSES.leave_to_parent)


def process_of(model: Any) -> DraftProcess:
    """The process that drafts with a model; a new one if there is none or it was lost.

    Raises:
        WorkerLostError: none can be started.
    """
    return _PROCESSES.of(model)

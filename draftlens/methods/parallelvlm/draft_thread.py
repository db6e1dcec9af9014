"""A draft worker in a thread of this process, for models on a GPU.

On the CPU a thread would share the interpreter's lock with the target, which makes passes of
small models several times slower; there, a process drafts (`methods.parallelvlm.draft_process`).
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
import weakref
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from draftlens.methods.parallelvlm.draft_side import Worker
from draftlens.methods.parallelvlm.messages import FromDraft, ToDraft, WorkerLostError
from draftlens.models.adapter import Backbone
from draftlens.models.model_state import Slot


class DraftThread:
    """A thread that drafts with one model for any number of sessions, on a CUDA stream of its own.

    It holds the model while there are sessions, and ends with it. In forks of this process, running
    answers go on without a draft, and new ones start a thread of their own.
    """

    cores = 0
    processes: tuple[int, ...] = ()

    def __init__(self, backbone: Backbone) -> None:
        self._numbers = itertools.count()
        self._outbox: queue.SimpleQueue[ToDraft | None] = queue.SimpleQueue()
        self._arrived = threading.Condition()
        self._inboxes: dict[int, deque[FromDraft]] = {}
        self._lost: str | None = None
        self._model = weakref.ref(backbone.model)
        self._worker: Worker | None = None
        self._stream = _stream_of(backbone.device)
        weakref.finalize(backbone.model, self._end).atexit = False
        self._thread = threading.Thread(target=self._work, name="draftlens-draft", daemon=True)
        self._thread.start()

    def wait_until_ready(self) -> None:
        """A thread is always ready."""

    def new_answer(self) -> int:
        self._check()
        number = next(self._numbers)
        self._inboxes[number] = deque()
        return number

    def send(self, message: ToDraft) -> None:
        self._check()
        self._outbox.put(message)

    def receive(self, answer: int, timeout: float) -> list[FromDraft]:
        with self._arrived:
            inbox = self._inboxes[answer]
            if not inbox and timeout:
                self._arrived.wait(timeout)
            messages = list(inbox)
            inbox.clear()
        if not messages:
            self._check()
        return messages

    def forget(self, answer: int) -> None:
        with self._arrived:
            self._inboxes.pop(answer, None)

    def close(self) -> None:
        """End the thread after the messages that were sent."""
        self._end()
        self._thread.join()

    def _end(self) -> None:
        self._outbox.put(None)

    def leave_to_parent(self) -> None:
        """In a fork, which has no such thread: the worker is lost."""
        self._lost = "it belongs to the process that this one is a fork of"
        # The thread may have held their locks.
        self._arrived = threading.Condition()
        self._outbox = queue.SimpleQueue()

    def _check(self) -> None:
        if self._lost is not None:
            raise WorkerLostError(self._lost)

    def _deliver(self, message: FromDraft) -> None:
        with self._arrived:
            inbox = self._inboxes.get(message.answer)
            if inbox is not None:
                inbox.append(message)
            self._arrived.notify_all()

    def _work(self) -> None:
        try:
            with self._stream:
                self._serve()
        except Exception as error:  # the target goes on without the worker
            self._lost = f"{type(error).__name__}: {error}"

    def _serve(self) -> None:
        while True:
            can_step = self._worker is not None and self._worker.can_step
            try:
                message = self._outbox.get(block=not can_step)
            except queue.Empty:
                self._step()
                continue
            if message is None:
                return
            self._handle(message)
            del message  # a session's inputs are not kept

    def _step(self) -> None:
        assert self._worker is not None
        self._worker.step()

    def _handle(self, message: ToDraft) -> None:
        """The worker lives as long as it has sessions."""
        worker = self._worker
        if worker is None:
            model = self._model()
            if model is None:
                return
            worker = Worker(Backbone.of(model), self._deliver)
            self._worker = worker
        worker.handle(message)
        if worker.is_idle:
            self._worker = None


def _stream_of(device: torch.device) -> AbstractContextManager[Any]:
    if device.type != "cuda":
        return nullcontext()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return torch.cuda.stream(stream)


_THREAD = Slot[DraftThread]("thread that drafts")


class _Threads:
    def __init__(self) -> None:
        self._starting = threading.Lock()

    def of(self, backbone: Backbone) -> DraftThread:
        with self._starting:
            thread = _THREAD.get(backbone.model)
            if thread is None:
                thread = DraftThread(backbone)
                _THREAD.set(backbone.model, thread)
            return thread

    def leave_to_parent(self) -> None:
        """In a fork, which has no thread but the one that forked."""
        self._starting = threading.Lock()  # another thread of the parent may have held it
        for thread in _THREAD.values():
            thread.leave_to_parent()
        _THREAD.clear()


_THREADS = _Threads()
os.register_at_fork(after_in_child=_THREADS.leave_to_parent)


def thread_of(backbone: Backbone) -> DraftThread:
    """The thread that drafts with a model; the same one for the same model."""
    return _THREADS.of(backbone)

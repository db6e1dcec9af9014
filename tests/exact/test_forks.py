"""A process that forks while another of its threads answers: the child answers, too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from threading import Event, Thread, get_ident
from typing import Any

import pytest
import torch
from families import FAMILIES, inputs
from stock import NEW, draft, reference, target

import draftlens
from draftlens.core.locks import ForkLock
from draftlens.drafting.adaptive import history as records
from draftlens.models.adapter import Backbone
from draftlens.models.model_state import lock_of

FAMILY = FAMILIES[0]

LONG = 120
"""Seconds after which a child hangs."""


def in_fork(work: Callable[[], None]) -> int:
    """The exit status of a child that does this; 0 if nothing is raised."""
    child = os.fork()
    if not child:
        signal.alarm(LONG)
        try:
            work()
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


class Paused:
    """Runs something in a thread until that calls this object, and goes on when it is left."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.reached, self.goes_on = Event(), Event()
        self.result: Any = None
        self._work = work
        self._thread = Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.result = self._work()

    def __call__(self, *_: Any, **__: Any) -> None:
        if get_ident() == self._thread.ident:
            self.reached.set()
            self.goes_on.wait(LONG)

    def __enter__(self) -> Paused:
        self._thread.start()
        assert self.reached.wait(LONG)
        return self

    def __exit__(self, *_: Any) -> None:
        self.goes_on.set()
        self._thread.join(LONG)


def answer() -> list[list[int]]:
    given = inputs(FAMILY, FAMILY.richest)
    method = {"tree": "eagle"}
    options = {"draft": draft(FAMILY), "method": method, "max_new_tokens": NEW}
    return draftlens.generate(target(FAMILY), given, **options).tokens


def check_answer() -> None:
    assert answer() == reference(FAMILY, FAMILY.richest)


@pytest.mark.parametrize("where", ["reading a prompt", "watching a pass"])
def test_hooks_of_another_thread_do_not_reach_a_child(where: str) -> None:
    """They end a forward where it has served its purpose, or hand hidden states on."""
    check_answer()
    backbone = Backbone.of(target(FAMILY))
    seen: list[int] = []

    def watch() -> list[list[int]]:
        with backbone.watching([1, 2], lambda layer, states: seen.append(layer)):
            return answer()

    paused = Paused(watch if where == "watching a pass" else answer)
    module = target(FAMILY) if where == "reading a prompt" else backbone.decoder.layers[0]
    handle = module.register_forward_pre_hook(paused)
    try:
        with paused:
            hooks = [len(layer._forward_pre_hooks) for layer in backbone.decoder.layers]
            own = [int(layer is module) for layer in backbone.decoder.layers]

            def check() -> None:
                left = [len(layer._forward_pre_hooks) for layer in backbone.decoder.layers]
                assert left == own
                assert not backbone.decoder._forward_pre_hooks
                check_answer()

            assert in_fork(check) == 0
            now = [len(layer._forward_pre_hooks) for layer in backbone.decoder.layers]
            assert now == hooks  # those of this process are left alone
    finally:
        handle.remove()
    assert paused.result == reference(FAMILY, FAMILY.richest)
    assert bool(seen) == (where == "watching a pass")


def test_a_lock_that_another_thread_holds_is_free_in_a_child() -> None:
    """Of this thread's own locks nothing is lost."""
    model = torch.nn.Identity()
    lock, passes, own = ForkLock(), lock_of(model), ForkLock()
    paused: Paused

    def hold() -> None:
        with records._LOCK, lock, passes.exclusive(), passes.hooks, passes.watching():
            paused()

    def check() -> None:
        with lock, passes.exclusive(), passes.hooks:
            pass
        own.__exit__()
        check_answer()

    paused = Paused(hold)
    with paused, own:
        assert in_fork(check) == 0


SEVERAL_THREADS = """
import os, signal, torch
torch.set_num_threads(2)
from draftlens.models.model_state import lock_of
model = torch.nn.Identity()
lock_of(model)
numbers = torch.rand(1 << 20)
numbers.exp().sum()
child = os.fork()
if not child:
    signal.alarm(60)
    numbers.exp().sum()
    os._exit(torch.get_num_threads())
_, status = os.waitpid(child, 0)
raise SystemExit(10 * torch.get_num_threads() + os.waitstatus_to_exitcode(status))
"""


def test_a_child_does_not_wait_for_threads_of_its_parent() -> None:
    """OpenMP's threads are not forked, so a child computes on one."""
    done = subprocess.run([sys.executable, "-c", SEVERAL_THREADS], timeout=2 * LONG)
    assert done.returncode == 21
    assert torch.get_num_threads() == 1

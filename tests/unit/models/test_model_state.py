"""Values of a model end with it, and threads share them. Shared passes run side by side, exclusive
ones alone."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from threading import Barrier, Event, Lock, Thread, get_ident
from weakref import ref

import pytest
import torch
from torch import nn

from draftlens.models.model_state import PassLock, Slot, lock_of


def test_each_slot_of_each_model_has_a_value_of_its_own() -> None:
    first, second = nn.Identity(), nn.Identity()
    numbers, words = Slot[int]("numbers"), Slot[str]("words")
    numbers.set(first, 1)
    numbers.set(second, 2)
    words.set(first, "one")
    assert (numbers.get(first), words.get(first)) == (1, "one")
    assert (numbers.get(second), words.get(second)) == (2, None)
    assert sorted(numbers.values()) == [1, 2]
    numbers.drop(first)
    numbers.drop(first)
    assert (numbers.get(first), words.get(first), numbers.values()) == (None, "one", [2])
    numbers.clear()
    assert numbers.values() == []


def test_a_value_is_made_once() -> None:
    model = nn.Identity()
    made = Slot[list[int]]("made")
    assert made.get_or_make(model, list) is made.get_or_make(model, list)


def test_a_value_ends_with_its_model() -> None:
    model = nn.Identity()
    slot = Slot[nn.Module]("modules")
    value = nn.Identity()
    slot.set(model, value)
    watched = ref(value)
    del value
    assert watched() is not None
    del model
    gc.collect()
    assert watched() is None
    assert slot.values() == []


LONG, SHORT = 30.0, 0.2
"""Seconds in which a thread certainly runs, and in which it would if nothing held it up."""


def started(target: Callable[[], None]) -> Thread:
    thread = Thread(target=target, daemon=True)
    thread.start()
    return thread


def test_shared_holders_run_side_by_side() -> None:
    lock, barrier, passed = PassLock(), Barrier(3, timeout=LONG), list[int]()

    def hold() -> None:
        with lock.shared():
            barrier.wait()  # breaks unless all hold the lock at once
            passed.append(1)

    threads = [started(hold) for _ in range(3)]
    for thread in threads:
        thread.join(LONG)
    assert len(passed) == 3


@pytest.mark.parametrize("first", ["shared", "exclusive"])
@pytest.mark.parametrize("second", ["shared", "exclusive"])
def test_who_waits_for_whom(first: str, second: str) -> None:
    """Only two shared holders do not wait for each other."""
    lock, inside = PassLock(), Event()

    def enter() -> None:
        with getattr(lock, second)():
            inside.set()

    with getattr(lock, first)():
        thread = started(enter)
        waits = "exclusive" in (first, second)
        assert inside.wait(SHORT if waits else LONG) is not waits
    assert inside.wait(LONG)
    thread.join(LONG)


def test_an_exclusive_holder_may_take_the_lock_again() -> None:
    lock, inside = PassLock(), Event()

    def enter() -> None:
        with lock.shared():
            inside.set()

    with lock.exclusive():
        with lock.exclusive(), lock.shared(), lock.exclusive():
            pass
        thread = started(enter)
        assert not inside.wait(SHORT)  # it is still held
    assert inside.wait(LONG)
    thread.join(LONG)


def test_a_lone_shared_holder_may_become_exclusive() -> None:
    lock = PassLock()
    with lock.shared():
        with lock.shared(), lock.exclusive():
            pass
        with lock.shared():
            pass
    with lock.exclusive():
        pass


def test_between_their_passes_two_shared_holders_are_exclusive_in_turn() -> None:
    lock, barrier, inside = PassLock(), Barrier(2, timeout=LONG), list[int]()

    def hold() -> None:
        with lock.shared(), lock.shared():
            barrier.wait()  # both hold the lock
            with lock.between_passes():
                inside.append(len(inside))
                with lock.exclusive(), lock.shared():
                    pass
            assert lock._holders[get_ident()] == 2

    threads = [started(hold) for _ in range(2)]
    for thread in threads:
        thread.join(LONG)
    assert inside == [0, 1]
    with lock.exclusive(), lock.between_passes():  # also of one that holds it exclusively
        inside.append(2)
    assert not lock._holders
    assert lock._owner is None


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
def test_an_error_releases_the_lock(kind: str) -> None:
    lock, inside = PassLock(), Event()
    with pytest.raises(ZeroDivisionError), getattr(lock, kind)():
        _ = 1 / 0

    def enter() -> None:
        with lock.exclusive():
            inside.set()

    started(enter).join(LONG)
    assert inside.is_set()


def test_many_threads() -> None:
    """An exclusive holder never meets another holder."""
    lock, count = PassLock(), Lock()
    holders = {"shared": 0, "exclusive": 0}
    met: list[dict[str, int]] = []
    rounds = list[str]()

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(40):
            kind = rng.choice(("shared", "shared", "exclusive"))
            with getattr(lock, kind)():
                with count:
                    holders[kind] += 1
                    met.append(dict(holders))
                time.sleep(rng.random() * 1e-4)
                with count:
                    holders[kind] -= 1
                    rounds.append(kind)

    threads = [started(lambda seed=seed: work(seed)) for seed in range(6)]  # type: ignore[misc]
    for thread in threads:
        thread.join(LONG)
    assert len(rounds) == 240
    for now in met:
        assert now["exclusive"] <= 1
        assert not (now["exclusive"] and now["shared"])
    assert holders == {"shared": 0, "exclusive": 0}


def test_a_model_has_one_lock() -> None:
    model, second_model = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    assert lock_of(model) is lock_of(model)
    assert lock_of(model) is not lock_of(second_model)


def test_a_fork_forgets_what_other_threads_held() -> None:
    lock = PassLock()
    held = Event()
    may_end = Event()

    def hold() -> None:
        with lock.shared():
            held.set()
            may_end.wait()

    thread = started(hold)
    assert held.wait(LONG)
    with lock.shared():
        lock.leave_to_parent()
        with lock.exclusive():  # the own hold remains, and is no obstacle
            pass
        assert list(lock._holders) == [get_ident()]
    lock._holders[thread.ident or 0] = 1  # as in the parent, where the thread goes on
    may_end.set()
    thread.join()
    assert not lock._holders

"""Which worker a draft has, and how many cores are left to the target."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from families import FAMILIES, inputs
from stock import LONG, draft, reference, target

import draftlens
from draftlens.methods.parallelvlm import drafters as place
from draftlens.methods.parallelvlm import loop
from draftlens.methods.parallelvlm.draft_thread import DraftThread, thread_of
from draftlens.methods.parallelvlm.loop import TargetShare, usable_cores
from draftlens.methods.parallelvlm.messages import Close, Open, WorkerLostError
from draftlens.models.adapter import Backbone

FAMILY = FAMILIES[0]


@pytest.fixture
def no_quota(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of eight cores; returns the folder for files of quotas, of which there are none."""
    for name in ("_QUOTA", "_QUOTA_V1", "_PERIOD_V1"):
        monkeypatch.setattr(loop, name, tmp_path / name)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    return tmp_path


def test_cores_of_the_affinity(no_quota: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cores() == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5})
    assert usable_cores() == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert usable_cores() == 3


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("max 100000", 8),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("1600000 100000", 8),
        ("nonsense", 8),
    ],
)
def test_cores_of_the_quota(no_quota: Path, quota: str, expected: int) -> None:
    (no_quota / "_QUOTA").write_text(quota + "\n")
    assert usable_cores() == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("300000", 3)])
def test_cores_of_an_old_quota(no_quota: Path, quota: str, expected: int) -> None:
    (no_quota / "_QUOTA_V1").write_text(quota)
    (no_quota / "_PERIOD_V1").write_text("100000")
    assert usable_cores() == expected


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of threads that torch was given; the last one is in force."""
    given = [4]
    monkeypatch.setattr(torch, "get_num_threads", lambda: given[-1])
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    return given


@pytest.mark.usefixtures("no_quota")
def test_threads_are_lowered_and_restored(
    threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "usable_cores", lambda: 4)
    share = TargetShare()
    first = share.held(1)
    second = share.held(1)
    first.__enter__()
    assert threads[-1] == 3
    second.__enter__()
    assert threads[-1] == 3
    first.__exit__(None, None, None)
    assert threads[-1] == 3  # the second one goes on
    second.__exit__(None, None, None)
    assert threads[-1] == 4
    with share.held(9):
        assert threads[-1] == 1
    assert threads[-1] == 4


@pytest.mark.usefixtures("no_quota")
def test_threads_are_taken_back_from_a_worker_that_is_not_used(
    threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "usable_cores", lambda: 3)  # fewer than torch has threads
    share = TargetShare()
    with share.held(0):
        assert threads == [4]
    with share.held(1) as leave, share.held(1) as leave_second:
        assert threads[-1] == 2
        leave(0)
        assert threads[-1] == 2  # the second one goes on
        leave_second(0)
        assert threads[-1] == 4
        leave_second(2)
        assert threads[-1] == 1
    assert threads[-1] == 4
    assert not share._left


def backbone(**changed: Any) -> Any:
    """As much of a backbone as its place depends on."""
    facts = {"device": torch.device("cpu"), "is_spread": False, **changed}
    return SimpleNamespace(**facts)


@pytest.mark.parametrize(
    ("drafting", "num_cores", "why"),
    [
        (backbone(), 1, "one core only"),
        (backbone(is_spread=True), 8, "spread over several devices or offloaded"),
        (backbone(device=torch.device("meta")), 8, "a draft on meta cannot run beside"),
    ],
)
def test_where_no_worker_is_possible_the_log_says_why(
    drafting: Any,
    num_cores: int,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(place, "usable_cores", lambda: num_cores)
    with caplog.at_level(logging.WARNING, logger="draftlens"):
        assert place.link_of(drafting) is None
    assert why in caplog.text
    assert "the schedule is serial" in caplog.text


def test_a_model_that_cannot_be_sent_has_no_worker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = FAMILY.build()
    model.extra = torch.nn.Linear(2, 2)
    monkeypatch.setattr(place, "usable_cores", lambda: 2)
    deciding = Backbone.of(model)
    gc.collect()  # what earlier tests left may hold descriptors
    descriptors = psutil.Process().num_fds()
    with caplog.at_level(logging.WARNING, logger="draftlens"):
        assert place.link_of(deciding) is None
    assert "builds another structure" in caplog.text
    gc.collect()
    assert psutil.Process().num_fds() == descriptors


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts on the CPU have a thread, as those on a GPU do."""
    monkeypatch.setattr("draftlens.methods.parallelvlm.drafters.link_of", thread_of)


@pytest.mark.usefixtures("in_threads")
@pytest.mark.parametrize(
    "method",
    [
        {"method": "speculative", "schedule": "parallel", "num_speculative_tokens": 4},
        {"method": "speculative", "schedule": "parallel", "num_speculative_tokens": 3},
        {"method": "parallelvlm", "prune_ratio": 0.5},
    ],
    ids=["four", "three", "uv"],
)
def test_a_thread_drafts(method: dict[str, Any]) -> None:
    for _ in range(3):
        result = draftlens.generate(
            target(FAMILY),
            inputs(FAMILY, FAMILY.richest),
            draft=draft(FAMILY),
            method=method,
            max_new_tokens=LONG,
        )
        assert result.tokens == reference(FAMILY, FAMILY.richest, LONG)
        assert result.stats.worker_lost is None
    assert threading.active_count() < 6


def stream_of(method: dict[str, Any]) -> Any:
    """The answer to the richest batch of the family."""
    return draftlens.stream(
        target(FAMILY),
        inputs(FAMILY, FAMILY.richest),
        draft=draft(FAMILY),
        method=method,
        max_new_tokens=LONG,
    )


@pytest.mark.usefixtures("in_threads", "no_quota")
@pytest.mark.parametrize("calls", [0, 12])
def test_a_lost_worker_gives_its_core_back(
    calls: int, threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that never could be used, and one that is lost midway."""
    monkeypatch.setattr(loop, "usable_cores", lambda: 4)
    monkeypatch.setattr(DraftThread, "cores", 1)
    method = {"method": "speculative", "schedule": "parallel", "num_speculative_tokens": 4}
    function = "receive" if calls else "new_answer"
    works = getattr(DraftThread, function)
    left = [calls]

    def fails_at_last(*args: Any) -> Any:
        if not left[0]:
            raise WorkerLostError("out of luck")
        left[0] -= 1
        return works(*args)

    monkeypatch.setattr(DraftThread, function, fails_at_last)
    stream = stream_of(method)
    in_force = [threads[-1] for _ in stream]
    assert stream.result.tokens == reference(FAMILY, FAMILY.richest, LONG)
    assert stream.result.stats.worker_lost == ("out of luck" if calls else None)
    assert in_force[0] == (3 if calls else 4)
    assert in_force[-1] == 4
    assert sorted(in_force) == in_force
    assert threads[0] == threads[-1]


LONGER_THAN_A_FORK = 60.0
"""Seconds of patience with a fork that answers."""


@pytest.mark.usefixtures("in_threads")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_goes_on_without_the_thread_of_its_parent() -> None:
    method = {"method": "speculative", "schedule": "parallel", "num_speculative_tokens": 4}
    expected = reference(FAMILY, FAMILY.richest, LONG)
    stream = stream_of(method)
    for _ in range(6):
        next(stream)
    thread = thread_of(Backbone.of(draft(FAMILY)))
    _wait_until_idle(thread)
    child = os.fork()
    if not child:
        status = 1
        try:
            result = stream.run()
            assert result.tokens == expected
            assert (
                result.stats.worker_lost == "it belongs to the process that this one is a fork of"
            )
            again = stream_of(method).run()
            assert again.tokens == expected
            assert again.stats.worker_lost is None
            assert thread_of(Backbone.of(draft(FAMILY))) is not thread
            status = 7
        finally:
            os._exit(status)
    assert stream.run().tokens == expected
    assert stream.result.stats.worker_lost is None
    assert _status(child) == 7


def _wait_until_idle(thread: DraftThread) -> None:
    """Wait until a worker has written all that it may."""
    end = time.monotonic() + LONGER_THAN_A_FORK
    while (thread._worker and thread._worker.can_step) or not thread._outbox.empty():
        assert time.monotonic() < end
        time.sleep(0.01)
    time.sleep(0.05)


def _status(child: int) -> int:
    """The exit status of a fork, which is ended if it hangs."""
    end = time.monotonic() + LONGER_THAN_A_FORK
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 3])
def test_a_thread_drafts_on_a_gpu(window: int | None) -> None:
    device = torch.device("cuda")
    given = {name: tensor.to(device) for name, tensor in inputs(FAMILY, FAMILY.richest).items()}
    deciding = FAMILY.build().to(device)
    method = {"method": "speculative", "schedule": "parallel", "num_speculative_tokens": window}
    plain = draftlens.generate(deciding, given, method="plain", max_new_tokens=LONG)
    for _ in range(3):
        result = draftlens.generate(
            deciding, given, draft=deciding, method=method, max_new_tokens=LONG
        )
        assert result.tokens == plain.tokens
        assert result.stats.worker_lost is None


def test_a_thread_is_kept_and_its_end_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    drafting = Backbone.of(draft(FAMILY))
    assert thread_of(drafting) is thread_of(Backbone.of(draft(FAMILY)))
    thread = DraftThread(drafting)

    def fail(message: Any) -> None:
        raise SystemError("out of luck")

    monkeypatch.setattr(thread, "_handle", fail)
    answer = thread.new_answer()
    thread.send(Open(answer, 10, None, shows_choices=False))
    thread._thread.join()
    with pytest.raises(WorkerLostError, match="SystemError: out of luck"):
        thread.receive(answer, 0.05)
    with pytest.raises(WorkerLostError):
        thread.send(Close(answer))
    thread.close()


@pytest.mark.usefixtures("in_threads")
def test_a_thread_does_not_keep_its_model() -> None:
    model = FAMILY.build()
    given = inputs(FAMILY, FAMILY.richest)
    method = {"method": "speculative", "schedule": "parallel", "num_speculative_tokens": 3}
    draftlens.generate(target(FAMILY), given, draft=model, method=method, max_new_tokens=5)
    thread = thread_of(Backbone.of(model))._thread
    known = weakref.ref(model)
    del model
    end = time.monotonic() + LONGER_THAN_A_FORK
    while known() is not None and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    assert known() is None
    thread.join(LONGER_THAN_A_FORK)
    assert not thread.is_alive()

"""Parallel decoding with a real process: the tokens stay those of stock `generate`, whatever
happens to the process."""

from __future__ import annotations

import copy
import os
import random
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

import psutil
import pytest
from families import FAMILIES, inputs
from links import ScriptedLink, session_of
from stock import LONG, draft, reference, target

import draftlens
from benchmarks.parallel_parts.forked import ForkedProcess
from draftlens import InputError
from draftlens.methods.parallelvlm.draft_process import process_of
from draftlens.methods.parallelvlm.loop import decode
from draftlens.methods.parallelvlm.messages import WorkerLostError
from draftlens.methods.parallelvlm.schedule import Schedule
from draftlens.models.adapter import Backbone

FAMILY = FAMILIES[0]
PARALLEL: Mapping[str, Any] = {"method": "speculative", "schedule": "parallel"}
WINDOW: Mapping[str, Any] = {**PARALLEL, "schedule": "parallel", "num_speculative_tokens": 3}
PARALLELVLM: Mapping[str, Any] = {"method": "parallelvlm", "prune_ratio": 0.5}
PATIENCE = 60.0
"""Seconds of a slow machine after which something hangs."""
SELF: Mapping[str, Any] = {**PARALLELVLM, "draft": "self"}


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests run in a process wherever they run."""
    monkeypatch.setattr("draftlens.methods.parallelvlm.drafters.usable_cores", lambda: 2)


def answer(method: Mapping[str, Any], model: Any = None, **options: Any) -> Any:
    """The result for the richest batch of the family; `model` drafts if it is given."""
    if model is None and method.get("draft") != "self":
        model = draft(FAMILY)
    return draftlens.generate(
        target(FAMILY),
        inputs(FAMILY, FAMILY.richest),
        draft=model,
        method=method,
        max_new_tokens=LONG,
        **options,
    )


def warm_up(model: Any) -> Any:
    """The process of a model, once it is ready."""
    process = process_of(model)
    number = process.new_answer()
    for _ in range(1200):
        if process.is_ready:
            break
        process.receive(number, 0.1)
    assert process.is_ready
    process.forget(number)
    return process


@pytest.mark.parametrize(
    "method", [PARALLEL, WINDOW, PARALLELVLM], ids=["measured", "window", "uv"]
)
def test_tokens_equal_stock_generate(method: Mapping[str, Any]) -> None:
    warm_up(draft(FAMILY))
    for _ in range(3):
        result = answer(method)
        assert result.tokens == reference(FAMILY, FAMILY.richest, LONG)
        assert result.stats.worker_lost is None
    assert result.lossless


def test_lockstep_with_a_process_does_the_work_of_every_other_run() -> None:
    warm_up(draft(FAMILY))
    works = set()
    for _ in range(3):
        stats = answer(WINDOW).stats
        works.add((stats.passes, stats.drafted, stats.accepted, stats.corrections))
    assert len(works) == 1
    assert stats.accepted > 0
    assert stats.lanes["draft"]["draft"] > 0


def test_sampled_tokens_are_those_of_plain_decoding() -> None:
    warm_up(draft(FAMILY))
    options = {"do_sample": True, "top_k": 40, "repetition_penalty": 1.1, "seed": [1, 2, 3]}
    assert answer(PARALLEL, **options).tokens == answer({"method": "plain"}, **options).tokens


def test_rejection_in_lock_step_repeats_itself() -> None:
    """What draft tokens were drawn from comes from the process; the tokens are those of target and
    worker in one thread."""
    warm_up(draft(FAMILY))
    options = {"do_sample": True, "top_k": 40, "repetition_penalty": 1.1}
    method = {**WINDOW, "sampling_rule": "rejection"}
    link = ScriptedLink(Backbone.of(draft(FAMILY)), seed=0)
    session = session_of(FAMILY, link, Schedule(3), acceptance="rejection")
    given = inputs(FAMILY, FAMILY.richest)
    prepared = session.target.prepare(given, max_new_tokens=LONG, **options)
    rows = session.add(prepared, [1, 2, 3], given)
    for _ in decode(session):
        pass
    for _ in range(2):
        result = answer(method, seed=[1, 2, 3], **options)
        assert result.tokens == [row.tokens for row in rows]
        assert result.stats.worker_lost is None
        assert result.stats.accepted > 0


def test_the_target_drafts_for_itself_with_one_copy_of_its_weights() -> None:
    model = target(FAMILY)
    warm_up(model)
    assert answer(SELF).tokens == reference(FAMILY, FAMILY.richest, LONG)
    # The weights are in one anonymous file that both processes map.
    weight = next(model.parameters())
    here = [entry for entry in psutil.Process().memory_maps(grouped=False) if "memfd" in entry.path]
    there = psutil.Process(process_of(model).pid).memory_maps(grouped=False)
    assert any(_holds(entry.addr, weight.data_ptr()) for entry in here)
    assert any("memfd:draftlens" in entry.path for entry in there)


def _holds(address: str, pointer: int) -> bool:
    start, end = (int(part, 16) for part in address.split("-"))
    return start <= pointer < end


def test_wrong_draft_inputs_raise_as_in_serial() -> None:
    warm_up(draft(FAMILY))
    given = inputs(FAMILY, FAMILY.richest)
    wrong = {"attention_mask": given["attention_mask"]}
    for method in (PARALLEL, {"method": "speculative"}):
        with pytest.raises(InputError, match="input_ids"):
            draftlens.generate(
                target(FAMILY),
                given,
                draft=draft(FAMILY),
                draft_inputs=wrong,
                method=method,
                max_new_tokens=4,
            )


def test_processors_that_cannot_be_sent_are_served_serially() -> None:
    warm_up(draft(FAMILY))
    plain = answer({"method": "plain"}, prefix_allowed_tokens_fn=lambda row, ids: range(20, 60))
    method = {**PARALLEL, "num_speculative_tokens": 3}
    result = answer(method, prefix_allowed_tokens_fn=lambda row, ids: range(20, 60))
    assert result.tokens == plain.tokens
    assert result.stats.accepted > 0
    assert not result.stats.lanes


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes start in a moment."""
    monkeypatch.setattr("draftlens.methods.parallelvlm.draft_process._start", ForkedProcess)


def wait_for_the_end_of(pid: int) -> None:
    """Returns once a signal that kills has ended a process, which happens some time after the
    signal is sent."""
    # Not `psutil.wait_procs`: an exit status that it takes is one that the parent misses.
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return
        except psutil.NoSuchProcess:
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} has outlived SIGKILL")


def wait_until_blocked(pid: int) -> None:
    """Returns once a process waits and needs no more of a core, however long it has work."""
    process = psutil.Process(pid)
    end = time.monotonic() + PATIENCE
    while True:
        before = process.cpu_times()[:2]
        time.sleep(0.3)
        if process.status() == psutil.STATUS_SLEEPING and process.cpu_times()[:2] == before:
            return
        assert time.monotonic() < end, f"process {pid} does not come to rest"


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    "method", [PARALLEL, WINDOW, PARALLELVLM], ids=["measured", "window", "uv"]
)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_process_leaves_the_answer_to_plain_decoding(
    method: Mapping[str, Any], how: signal.Signals
) -> None:
    model = copy.deepcopy(draft(FAMILY))
    for chunks in (0, 1, 20):  # before the prefill, behind it and midway
        process = warm_up(model)
        stream = draftlens.stream(
            target(FAMILY),
            inputs(FAMILY, FAMILY.richest),
            draft=model,
            method=method,
            max_new_tokens=LONG,
        )
        for _ in range(chunks):
            next(stream)
        os.kill(process.pid, how)
        began = time.monotonic()
        if how is signal.SIGKILL:
            wait_for_the_end_of(process.pid)
        result = stream.run()
        assert result.tokens == reference(FAMILY, FAMILY.richest, LONG)
        assert time.monotonic() - began < PATIENCE
        assert result.lossless
        if method is WINDOW and chunks:
            # How a killed process ended is not known where its parent is slow to collect it.
            killed = ("was ended by signal 9", "does not answer")
            seen = killed if how is signal.SIGKILL else ("is stopped",)
            assert result.stats.worker_lost in {f"the drafting process {words}" for words in seen}
        # A new answer has a new process.
        again = warm_up(model)
        assert again.pid != process.pid
        assert not psutil.pid_exists(process.pid)
    again.close()


@pytest.mark.usefixtures("forked")
def test_a_process_that_is_killed_at_any_moment() -> None:
    """The answers do not repeat or lose a token."""
    rng = random.Random(0)
    model = copy.deepcopy(draft(FAMILY))
    expected = reference(FAMILY, FAMILY.richest, LONG)
    for number in range(12):
        process = warm_up(model)
        timer = threading.Timer(rng.uniform(0.0, 0.3), os.kill, (process.pid, signal.SIGKILL))
        timer.start()
        for _ in range(3):
            assert answer((PARALLEL, WINDOW)[number % 2], model=model).tokens == expected
        timer.join()
        wait_for_the_end_of(process.pid)
    process_of(model).close()


@pytest.mark.usefixtures("forked")
def test_a_process_that_dies_while_it_starts() -> None:
    model = copy.deepcopy(draft(FAMILY))
    os.kill(process_of(model).pid, signal.SIGKILL)
    assert answer(WINDOW, model=model).tokens == reference(FAMILY, FAMILY.richest, LONG)
    process_of(model).close()


@pytest.mark.usefixtures("forked")
def test_a_process_that_cannot_start_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(draft(FAMILY))
    monkeypatch.setattr("benchmarks.parallel_parts.forked._draft", fails_to_start)
    process = process_of(model)
    assert answer(WINDOW, model=model).tokens == reference(FAMILY, FAMILY.richest, LONG)
    assert process.lost == "the drafting process has ended with status 3"
    with pytest.raises(WorkerLostError, match="status 3 before it was ready"):
        process_of(model)
    result = answer(WINDOW, model=model)
    assert result.tokens == reference(FAMILY, FAMILY.richest, LONG)
    assert result.stats.drafted > 0
    assert not result.stats.lanes


def fails_to_start(theirs: Any, fault: Any) -> None:
    """Takes the place of a drafting process whose libraries cannot be loaded."""
    os._exit(3)


def test_two_streams_share_a_process() -> None:
    warm_up(draft(FAMILY))
    expected = reference(FAMILY, FAMILY.richest, LONG)
    streams = [
        draftlens.stream(
            target(FAMILY),
            inputs(FAMILY, FAMILY.richest),
            draft=draft(FAMILY),
            method=PARALLEL,
            max_new_tokens=LONG,
        )
        for _ in range(2)
    ]
    pending = list(streams)
    while pending:
        for stream in list(pending):
            if next(stream, None) is None:
                pending.remove(stream)
    assert [stream.result.tokens for stream in streams] == [expected, expected]
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(answer(PARALLEL))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.tokens for result in results] == [expected, expected]


def test_streams_that_are_dropped_or_pause_leave_nothing() -> None:
    process = warm_up(draft(FAMILY))
    answer(PARALLEL)
    descriptors = psutil.Process().num_fds()
    for chunks in (0, 1, 5, 20):
        stream = draftlens.stream(
            target(FAMILY),
            inputs(FAMILY, FAMILY.richest),
            draft=draft(FAMILY),
            method=PARALLEL,
            max_new_tokens=LONG,
        )
        for _ in range(chunks):
            next(stream)
        del stream
    assert answer(PARALLEL).tokens == reference(FAMILY, FAMILY.richest, LONG)
    assert psutil.Process().num_fds() <= descriptors + 1
    wait_until_blocked(process.pid)


def test_many_answers_leak_neither_descriptors_nor_processes() -> None:
    process = warm_up(draft(FAMILY))
    given = inputs(FAMILY, FAMILY.richest, (0,))
    here = psutil.Process()
    there = psutil.Process(process.pid)

    def serve(count: int) -> tuple[int, int, int]:
        for number in range(count):
            method = (PARALLEL, WINDOW, PARALLELVLM)[number % 3]
            draftlens.generate(
                target(FAMILY), given, draft=draft(FAMILY), method=method, max_new_tokens=3
            )
        # The process has followed all messages once it has answered the last one.
        answer(WINDOW)
        return here.num_fds(), there.num_fds(), len(here.children(recursive=True))

    before = serve(6)
    after = serve(50)
    assert process_of(draft(FAMILY)) is process
    for count, earlier in zip(after, before, strict=True):
        assert count <= earlier + 1
    assert not process._inboxes

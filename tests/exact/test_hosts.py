"""Prompts read by several processes: the same as by one."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import psutil
import pytest
import torch
from families import FAMILIES, inputs
from pool import Pool
from stock import LONG, draft, reference, target
from torch import Tensor

import draftlens
from draftlens.core.errors import HostError
from draftlens.core.prefill_readings import FeatureSpec, Similarity
from draftlens.models.adapter import Backbone
from draftlens.prefill.base import PrefillOutput, PrefillReading, make_prefill
from draftlens.prefill.spava.hosts import hosts_of
from draftlens.request import Request, open_call

pytestmark = [pytest.mark.dist]

BLOCKS = {"name": "spava", "anchor": 3, "passing": 2, "blocks": 7}
"""Lengths that nothing divides."""

GATHERED = {**BLOCKS, "decode": "gathered"}
SHARDED = {**BLOCKS, "decode": "sharded"}
RING = {"name": "ring", "decode": "gathered"}
RING_SHARDED = {"name": "ring", "decode": "sharded"}

EVERY = range(len(FAMILIES))
SPEC = FeatureSpec(
    attention=True, hidden_layers=(1,), similarities=(Similarity(layer=2, text="all"),)
)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    started = Pool(tmp_path_factory.mktemp("pool"))
    yield started
    started.close()


def answer(backbone: Backbone, family: int, prefill: Any, **options: Any) -> draftlens.Result:
    given = inputs(FAMILIES[family], FAMILIES[family].richest)
    return draftlens.generate(backbone, given, prefill=prefill, max_new_tokens=LONG, **options)


@cache
def by_one(family: int) -> draftlens.Result:
    return answer(Backbone.of(target(FAMILIES[family])), family, BLOCKS)


@pytest.mark.parametrize("family", EVERY, ids=[str(family) for family in FAMILIES])
def test_every_family(pool: Pool, family: int) -> None:
    """Ragged batches, rows without pictures, several pictures: the ring gives the tokens of stock
    `generate`, and blocks those of one process, wherever keys and values are while the answers are
    decoded, with and without trees."""
    tree = {"draft": draft(FAMILIES[family]), "method": {"tree": "eagle"}}
    with pool.reading(family, 2) as backbone:
        ring = answer(backbone, family, RING_SHARDED)
        gathered = answer(backbone, family, GATHERED)
        sharded = answer(backbone, family, SHARDED, **tree)
    assert ring.tokens == reference(FAMILIES[family], FAMILIES[family].richest, LONG)
    assert ring.lossless
    assert gathered.tokens == sharded.tokens == by_one(family).tokens
    assert sharded.stats.accepted > 0
    for result in (gathered, sharded):
        assert result.notes == by_one(family).notes
        assert result.approximate == by_one(family).approximate


def read(backbone: Backbone, family: int, prefill: Any) -> tuple[PrefillOutput, Any]:
    """The output of a prefill of a ragged batch, and its cache."""
    given = inputs(FAMILIES[family], FAMILIES[family].richest)
    prompt = backbone.encode(backbone.prepare(given, max_new_tokens=1))
    reader = make_prefill(prefill)
    cache = reader.new_cache(backbone, prompt, 1)
    return reader.run(backbone, PrefillReading(prompt, cache, SPEC)), cache


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(
    ("family", "prefill"),
    [
        (3, GATHERED),
        (3, {**GATHERED, "select": "query"}),
        (5, {**SHARDED, "zigzag": False}),
        (4, {**SHARDED, "query_tokens": 2, "anchor": 1, "blocks": 3}),
        (5, RING_SHARDED),
        (3, RING),
    ],
    ids=[
        "spava",
        "by query",
        "no zigzag, sharded",
        "a text, sharded",
        "ring deepstack, sharded",
        "ring",
    ],
)
def test_everything_that_a_prefill_leaves(pool: Pool, family: int, prefill: Any, size: int) -> None:
    """Logits, keys, values and readings are those of one process, whatever their number and
    wherever keys and values are."""
    is_ring = prefill["name"] == "ring"
    with pool.reading(family, 1) as backbone:
        expected, whole = read(backbone, family, "full" if is_ring else prefill)
    everything = [[torch.arange(length) for length in whole.lengths]] * len(whole.layers)
    with pool.reading(family, size) as backbone:
        output, cache = read(backbone, family, prefill)
        taken = list(cache.taken(everything))
    check_close(output.logits, expected.logits)
    for ours, theirs in zip(taken, whole.taken(everything), strict=True):
        for row, length in enumerate(whole.lengths):
            check_close(ours[0][row, :, :length], theirs[0][row, :, :length])
            check_close(ours[1][row, :, :length], theirs[1][row, :, :length])
    for row, length in enumerate(whole.lengths):
        check_division(cache, row, length, prefill["decode"] == "sharded")
    ours, theirs = output.readings, expected.readings
    check_close(ours.attention, theirs.attention)
    for similar in theirs.similarities:
        check_close(ours.similarities[similar], theirs.similarities[similar])
    for row, length in enumerate(whole.lengths):
        check_close(ours.hidden_states[1][row, :length], theirs.hidden_states[1][row, :length])


def check_division(cache: Any, row: int, length: int, is_sharded: bool) -> None:
    """Every key is held once: by rank 0, or by one of several hosts."""
    if not is_sharded:
        assert cache.lengths[row] == length
        return
    places = cache.spread[row].places
    if cache.spread[row].is_spread:
        assert cache.lengths[row] == len(places[0]) < length
    assert sorted(torch.cat(places).tolist()) == list(range(length))


def check_close(ours: Tensor, theirs: Tensor) -> None:
    """Equal but for the rounding of sums in another order, in relation to the largest of them."""
    assert (ours - theirs).abs().max() < 5e-6 * theirs.abs().max()


CHAIN = {"num_speculative_tokens": 5}
PRUNING = {"method": "specvlm", "num_speculative_tokens": 3, "prune_ratio": 0.5}
GATHERING = {"method": "specvlm", "num_speculative_tokens": 3, "draft": "self"}
SPARSE = {"method": "self-sd", "num_speculative_tokens": 3, "kv": "sparse"}
SHARDED_CASES = ("chain", "specvlm", "gather", "sparse", "ring", "ring sparse")


@pytest.mark.parametrize(
    ("prefill", "method"),
    [
        (GATHERED, CHAIN),
        (GATHERED, PRUNING),
        (SHARDED, CHAIN),
        (SHARDED, PRUNING),
        (SHARDED, GATHERING),
        (SHARDED, SPARSE),
        (RING_SHARDED, CHAIN),
        (RING_SHARDED, SPARSE),
    ],
    ids=["chain", "specvlm", *("sharded " + name for name in SHARDED_CASES)],
)
def test_drafters_go_on_as_today(pool: Pool, prefill: Any, method: Any) -> None:
    family = FAMILIES[4]
    is_ring = prefill["name"] == "ring"
    expected = reference(family, family.richest, LONG) if is_ring else by_one(4).tokens
    with pool.reading(4, 3) as backbone:
        result = answer(backbone, 4, prefill, draft=draft(family), method=method)
    assert result.tokens == expected
    assert result.stats.accepted > 0


def test_rows_join_and_leave_a_batch_that_several_hosts_hold(pool: Pool) -> None:
    """Each call is read by all hosts when it comes, and what they hold of a row goes with it."""
    family = FAMILIES[2]
    expected = reference(family, family.richest, LONG)
    with pool.reading(2, 2) as backbone:
        request = Request(
            inputs(family, family.richest, rows=(0,)),
            options={"max_new_tokens": LONG},
            method={"method": "plain", "prefill": RING_SHARDED},
        )
        call = open_call(backbone, None, request)
        chunks = call.plan.schedule(call.session)
        next(chunks)
        late = inputs(family, family.richest, rows=(1, 2))
        prepared = backbone.prepare(late, max_new_tokens=LONG)
        joined = call.session.add(prepared, seeds=[0, 0], draft_inputs=late)
        for _ in range(9):
            next(chunks)
        assert pool.num_kept(backbone) == 3
        call.session.remove(call.sequences[0])
        for _ in chunks:
            pass
        assert pool.num_kept(backbone) == 2
        del call, chunks, prepared
        gc.collect()
        assert pool.num_kept(backbone) == 0
    assert [list(sequence.tokens) for sequence in joined] == expected[1:]


def lost(backbone: Backbone, ask: Callable[[], Any], patience: float = 0.0) -> str:
    """What an answer says whose group has lost a rank, which it may notice only after so long."""
    started = time.monotonic()
    with pytest.raises(HostError) as raised:
        ask()
    assert time.monotonic() - started < patience + 60
    with pytest.raises(HostError, match=str(raised.value)):  # and so does every further one
        answer(backbone, 2, "ring")
    return str(raised.value)


def streaming(backbone: Backbone, prefill: Any) -> draftlens.Stream:
    given = inputs(FAMILIES[2], FAMILIES[2].richest)
    return draftlens.stream(backbone, given, prefill=prefill, max_new_tokens=LONG)


def test_a_host_is_killed(pool: Pool) -> None:
    """While an answer is decoded: all others name it and end with status 2."""
    with pool.reading(2, 3, patience=20) as backbone:
        stream = streaming(backbone, SHARDED)
        for _ in range(6):
            next(stream)
        os.kill(pool.pids[0], signal.SIGKILL)
        assert lost(backbone, stream.run).startswith("host 1 has ended")
        assert pool.status_of(2) == 2
        assert pool.errors_of(2).read_text().startswith("error: host 1 has ended")
        assert pool.errors_of(2).read_text().count("\n") == 1
        assert pool.status_of(1) == -signal.SIGKILL


def test_a_host_hangs(pool: Pool) -> None:
    """While a prompt is read. Waiting for work is not hanging, however long it lasts, nor is a
    consumer that takes its time."""
    with pool.reading(2, 4) as backbone:
        started = time.monotonic()
        streaming(backbone, SHARDED).run()
        seconds = time.monotonic() - started
    # Each of an answer's many exchanges takes less than the whole answer, however busy the cores.
    patience = 4 + 4 * seconds
    with pool.reading(2, 4, patience) as backbone:
        stream = streaming(backbone, SHARDED)
        next(stream)
        time.sleep(patience + 1)
        assert stream.run().tokens == by_one(2).tokens
        os.kill(pool.pids[1], signal.SIGSTOP)
        try:
            why = lost(backbone, partial(answer, backbone, 2, BLOCKS), patience)
            assert why.startswith("host 2 has ended or was stopped")
            for rank in (1, 3):
                assert pool.status_of(rank) == 2
                assert "host 2 has ended or was stopped" in pool.errors_of(rank).read_text()
        finally:
            os.kill(pool.pids[1], signal.SIGKILL)
        pool.status_of(2)


def test_a_host_fails(pool: Pool) -> None:
    """All hosts end with what it says."""
    with pool.reading(2, 2, patience=20) as backbone:
        hosts: Any = hosts_of(backbone)
        hosts._send_bytes(memoryview(bytearray(b"no job")), 1)
        with pytest.raises(HostError, match="host 1 failed: ValueError: what it was sent"):
            hosts.gather(torch.zeros(1), [1, 1]).wait()
        assert pool.status_of(1) == 2
        assert "host 1 failed: " in pool.errors_of(1).read_text()


def test_an_interrupted_answer(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows which exchanges the others have made, so the group is used no more."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with pool.reading(2, 2) as backbone:
        answer(backbone, 2, "ring")
        monkeypatch.setattr("draftlens.prefill.spava.rank_zero.read_shard", interrupted)
        with pytest.raises(KeyboardInterrupt):
            answer(backbone, 2, "ring")
        monkeypatch.undo()
        with pytest.raises(HostError, match="an answer was interrupted"):
            answer(backbone, 2, "ring")
        os.kill(pool.pids[0], signal.SIGKILL)
    pool.status_of(1)


def test_those_who_stop_early_and_those_who_come_twice(pool: Pool) -> None:
    """A consumer that stops, and two threads: nothing hangs, whether keys and values are where they
    were read, on rank 0, or where it measured to be better."""
    family = FAMILIES[2]
    expected = reference(family, family.richest, LONG)
    with pool.reading(2, 2) as backbone:
        for prefill in ("ring", RING_SHARDED):
            next(streaming(backbone, prefill))
        with ThreadPoolExecutor(2) as threads:
            running = [
                threads.submit(answer, backbone, 2, prefill)
                for prefill in (RING_SHARDED, RING, RING_SHARDED)
            ]
            assert [call.result(60).tokens for call in running] == [expected] * 3
    assert pool.status_of(1) == 0
    assert pool.errors_of(1).read_text() == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
def test_the_end_of_the_first_process_ends_all(pool: Pool, number: signal.Signals) -> None:
    """Of those that it has started, in the middle of its answers."""
    first, other = pool.leading(2)
    os.kill(first, number)
    status = pool.status_of_process(first)
    assert status == (130 if number == signal.SIGINT else -number)
    deadline = time.monotonic() + 60
    while is_running(other):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

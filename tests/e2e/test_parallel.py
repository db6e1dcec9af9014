"""Draft and target at the same time on the embedded pair, with its own drafting process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

import draftlens
from draftlens.methods.parallelvlm.draft_process import process_of
from draftlens.verify import run_stock
from tests.e2e.conftest import CLIPS

pytestmark = [pytest.mark.slow, pytest.mark.dist]

CLIP = CLIPS / "shapes.mp4"
PROMPT = "Describe the video."
NEW = 60


@pytest.fixture(scope="module")
def parallel() -> Iterator[draftlens.Engine]:
    """An engine that drafts ahead, once its process is ready."""
    with pytest.MonkeyPatch.context() as patch:
        # The tests run in a process wherever they run.
        patch.setattr("draftlens.methods.parallelvlm.drafters.usable_cores", lambda: 2)
        engine = draftlens.load("embedded", device="cpu", method="parallelvlm", calibrate=False)
        assert engine.draft is not None
        engine.plan().wait_until_ready()
        yield engine
        process_of(engine.draft.backbone.model).close()


@pytest.fixture(scope="module")
def expected(parallel: draftlens.Engine) -> list[list[int]]:
    """Stock's answer."""
    inputs = parallel.read(PROMPT, video=CLIP)
    stock = run_stock(parallel.target.backbone, inputs.target, do_sample=False, max_new_tokens=NEW)
    return stock.tokens


@pytest.mark.parametrize(
    "method",
    [
        None,
        {"method": "parallelvlm", "num_speculative_tokens": 4},
        {"method": "speculative", "schedule": "parallel"},
        # The automatic tree of a serial schedule may find that drafting does not pay.
        {"method": "parallelvlm", "schedule": "serial", "num_speculative_tokens": 4},
    ],
    ids=["the engine's", "given window", "unpruned", "serial"],
)
def test_the_tokens_are_those_of_stock_generate(
    parallel: draftlens.Engine, expected: list[list[int]], method: Any
) -> None:
    result = parallel.generate(PROMPT, video=CLIP, method=method, max_new_tokens=NEW)
    assert result.tokens == expected
    assert result.lossless
    assert result.stats.worker_lost is None
    # A process that gets no core may be stopped as slower than plain decoding.
    may_be_late = method is None or method == {"method": "speculative", "schedule": "parallel"}
    assert result.stats.accepted > 0 or may_be_late
    is_serial = method is not None and method.get("schedule") == "serial"
    assert ("draft" in result.stats.lanes) is not is_serial
    if method is None or method["method"] == "parallelvlm":
        assert 0 < result.stats.kept < 0.2 * result.stats.visual


def test_the_chunks_of_a_stream_are_the_answer(
    parallel: draftlens.Engine, expected: list[list[int]]
) -> None:
    tokens: list[int] = []
    for chunk in parallel.stream(PROMPT, video=CLIP, max_new_tokens=NEW):
        tokens += chunk.tokens
    assert [tokens] == expected


def test_a_later_turn_reads_what_is_new(parallel: draftlens.Engine) -> None:
    """Its pruner compares hidden states, which the prompt cache has of the first turn."""
    turns = {}
    for method in ("plain", "parallelvlm"):
        chat = parallel.chat(video=CLIP, namespace=method)
        turns[method] = [
            chat.ask(question, method=method, max_new_tokens=NEW)
            for question in (PROMPT, "Which word is shown last?")
        ]
    plain, ahead = turns.values()
    assert [each.tokens for each in ahead] == [each.tokens for each in plain]
    first, second = (each.stats for each in ahead)
    assert first.cached_tokens == 0
    assert second.cached_tokens > second.visual > second.kept > 0


def test_the_process_ends_with_its_engine() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("draftlens.methods.parallelvlm.drafters.usable_cores", lambda: 2)
        engine = draftlens.load("embedded", device="cpu", method="parallelvlm", calibrate=False)
        assert engine.draft is not None
        pid = process_of(engine.draft.backbone.model).pid
    assert psutil.pid_exists(pid)
    del engine
    gc.collect()
    assert not psutil.pid_exists(pid)

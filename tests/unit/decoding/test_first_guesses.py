"""When first tokens are guessed: by the times of earlier answers, which are made up here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from batches import batch_of, sequences

from draftlens.core.batch import Batch
from draftlens.core.sampling import SamplingRule
from draftlens.core.stats import PHASES
from draftlens.decoding.first_guesses import (
    NUM_TIMINGS,
    Delays,
    FirstGuesses,
    Timing,
    are_free,
    delay,
)

REJECTION = SamplingRule(do_sample=True, acceptance="rejection")


def timing(target: float, draft: float, length: int = 1000) -> Timing:
    return Timing(length, target, draft)


@pytest.mark.parametrize(
    ("given", "length", "number", "expected"),
    [
        (timing(1.0, 0.01), 1000, 0, 0.01),
        (timing(1.0, 0.01), 1000, 5, 0.015),  # the target reads the guesses too
        (timing(1.0, 0.01), 2000, 10, 0.015),  # both take twice as long
        (timing(1.0, 0.01), 500, 0, 0.02),  # only the target is expected to be faster
        (timing(2.0, 2.0), 1000, 0, 1.0),
        (timing(0.0, 0.1), 1000, 0, float("inf")),
    ],
)
def test_the_predicted_delay(given: Timing, length: int, number: int, expected: float) -> None:
    assert delay(given, length, number) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("timings", "length", "number", "free"),
    [
        ([], 1000, 5, False),  # nothing is known
        ([timing(1.0, 0.0149)], 1000, 5, True),
        ([timing(1.0, 0.0151)], 1000, 5, False),
        ([timing(1.0, 0.01)], 1000, 5, True),
        ([timing(1.0, 0.01)], 600, 5, False),
        ([timing(1.0, 0.01), timing(1.0, 0.03)], 1000, 5, False),  # the slowest counts
        ([timing(1.0, 0.0)], 249, 5, False),  # the guesses alone are 2% of the prompt
        ([timing(1.0, 0.0)], 251, 5, True),
        ([timing(1.0, 1.0)], 1000, 1, False),
    ],
)
def test_free_guesses_delay_the_first_token_by_at_most_two_percent(
    timings: list[Timing], length: int, number: int, free: bool
) -> None:
    assert are_free(timings, length, number) is free


def test_timings_are_kept_by_size_and_the_first_does_not_count() -> None:
    delays = Delays()
    delays.record(1, timing(1.0, 9.0, length=600))
    assert delays.of(1, 600) == ()
    delays.record(1, timing(1.0, 0.1, length=1000))
    assert delays.of(1, 512) == delays.of(1, 1023) == (timing(1.0, 0.1, length=1000),)
    for rows, length in ((2, 600), (1, 511), (1, 1024)):
        assert delays.of(rows, length) == ()
    for index in range(20):
        delays.record(1, timing(1.0, index))
    drafts = [kept.draft for kept in delays.of(1, 1000)]
    assert drafts == list(range(20 - NUM_TIMINGS, 20))  # old ones are forgotten


def batch(rule: SamplingRule | None = None, num_rows: int = 1) -> Batch:
    """Rows that have said nothing."""
    prompts = torch.zeros(num_rows, 4, dtype=torch.long)
    return batch_of(sequences(prompts, [[]] * num_rows, rule))


def guesses(delays: Delays | None) -> FirstGuesses:
    nobody: Any = None
    return FirstGuesses(nobody, 4, delays, (torch.device("cpu"),))


def known(target: float, draft: float) -> Delays:
    delays = Delays()
    for _ in range(2):
        delays.record(1, timing(target, draft))
    return delays


def test_the_number_of_guesses() -> None:
    assert guesses(None).number(batch(), 10) == 4
    assert guesses(None).number(batch(REJECTION), 10, alone=False) == 4
    fast = guesses(known(1.0, 0.001))
    assert fast.number(batch(), 1000) == 4
    assert fast.number(batch(SamplingRule(do_sample=True)), 1000) == 4
    assert fast.number(batch(REJECTION), 1000) == 0  # tokens must not depend on times
    assert fast.number(batch(), 1000, alone=False) == 0
    assert fast.number(batch(num_rows=2), 1000) == 0  # no timing of two rows
    assert fast.number(batch(), 5000) == 0
    assert guesses(known(1.0, 0.1)).number(batch(), 1000) == 0
    assert guesses(Delays()).number(batch(), 1000) == 0


def test_a_timing_has_the_seconds_of_all_phases_before_the_first_round() -> None:
    phases = dict.fromkeys(PHASES, 100.0) | {
        "vision": 3.0,
        "target_prefill": 5.0,
        "prune": 0.25,
        "draft_prefill": 0.5,
        "draft": 0.3,
    }
    delays = Delays()
    for _ in range(2):
        guesses(delays).record(1, 700, phases, forwards=3)
    [recorded] = delays.of(1, 700)
    assert recorded == Timing(700, 8.0, pytest.approx(0.25 + 0.5 + 4 * 0.1))  # type: ignore[arg-type]
    guesses(delays).record(1, 700, phases, forwards=0)  # nothing was drafted
    guesses(None).record(1, 700, phases, forwards=3)  # nothing is decided by times
    assert delays.of(1, 700) == (recorded,)


def test_only_recorded_timings_make_devices_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waits.append)
    devices = (torch.device("cpu"), torch.device("cuda", 1))
    nobody: Any = None
    FirstGuesses(nobody, 4, None, devices).settle()
    assert not waits
    FirstGuesses(nobody, 4, Delays(), devices).settle()
    assert waits == [torch.device("cuda", 1)]

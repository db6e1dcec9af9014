"""Calls that may reach positions where a draft token would change the frequencies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from draftlens.core.errors import InputError
from draftlens.models.support import Frequencies, check_reach, frequencies_of, reads_with_original

DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
LONG = {"rope_type": "longrope", "original_max_position_embeddings": 40}


def config(rope: Any) -> Any:
    return SimpleNamespace(rope_parameters=rope, max_position_embeddings=100)


@pytest.mark.parametrize(
    "rope", [None, {}, {"rope_type": "default"}, {"rope_type": "yarn"}, {"rope_type": "llama3"}]
)
def test_fixed_frequencies_have_no_limit(rope: Any) -> None:
    check_reach("Some", config(rope), 10**6, 10**7)


@pytest.mark.parametrize(
    ("rope", "prompt", "longest", "limit"),
    [
        (DYNAMIC, 90, 100, None),
        (DYNAMIC, 90, 101, 100),
        (DYNAMIC, 101, 102, 100),
        (LONG, 30, 40, None),
        (LONG, 40, 41, 40),
        (LONG, 41, 400, None),  # the prompt is beyond the limit, so every forward is
        ({"rope_type": "longrope"}, 99, 101, 100),
        ({"full_attention": DYNAMIC, "other": {"rope_type": "default"}}, 90, 101, 100),
        ({"one": LONG, "two": DYNAMIC}, 41, 101, 100),
    ],
)
def test_a_limit_that_may_be_passed(
    rope: Any, prompt: int, longest: int, limit: int | None
) -> None:
    if limit is None:
        check_reach("Some", config(rope), prompt, longest)
        return
    with pytest.raises(
        InputError,
        match=f"may reach {longest} tokens, and beyond {limit} a draft token would .* Some",
    ):
        check_reach("Some", config(rope), prompt, longest)


WITHIN = Frequencies()
ALONE = Frequencies(None)


@pytest.mark.parametrize(
    ("rope", "prompts", "room", "expected"),
    [
        ({"rope_type": "default"}, [9, 10**6], 10**6, WITHIN),
        (DYNAMIC, [7, 90], 10, WITHIN),
        (DYNAMIC, [90, 90], 11, ALONE),
        (DYNAMIC, [500], 1, ALONE),
        (LONG, [7, 30], 10, WITHIN),
        (LONG, [40], 1, ALONE),
        (LONG, [41, 500], 9, Frequencies(frozenset({40}))),
        ({"one": LONG, "two": DYNAMIC}, [41, 90], 10, Frequencies(frozenset({40}))),
        ({"one": LONG, "two": DYNAMIC}, [91], 10, ALONE),
    ],
)
def test_frequencies_of_a_call(
    rope: Any, prompts: list[int], room: int, expected: Frequencies
) -> None:
    assert frequencies_of("Some", config(rope), prompts, room) == expected


@pytest.mark.parametrize(
    ("rope", "prompts", "limit"), [(DYNAMIC, [50, 99], 100), (LONG, [30, 60], 40)]
)
def test_rows_on_both_sides_of_the_limit(rope: Any, prompts: list[int], limit: int) -> None:
    first, last = prompts
    with pytest.raises(
        InputError,
        match=f"have {first} to {last} tokens, and beyond {limit} .* of Some depend on the longest",
    ):
        frequencies_of("Some", config(rope), prompts, 2)


def test_a_model_that_reads_its_prompt_again() -> None:
    with pytest.raises(InputError, match="may reach 41 tokens, and beyond 40 Some reads the prom"):
        frequencies_of("Some", config(LONG), [39], 2, rereads=True)
    assert frequencies_of("Some", config(LONG), [39], 1, rereads=True) == WITHIN
    assert frequencies_of("Some", config(LONG), [41], 99, rereads=True).beyond == {40}


def test_which_calls_share_passes() -> None:
    beyond = Frequencies(frozenset({40}))
    assert WITHIN.are_original
    assert not beyond.are_original
    assert not ALONE.are_original
    assert WITHIN.allow_passes_with(WITHIN)
    assert beyond.allow_passes_with(beyond)
    assert not WITHIN.allow_passes_with(beyond)
    assert not ALONE.allow_passes_with(ALONE)


def test_prompts_that_may_be_divided() -> None:
    assert reads_with_original(config(DYNAMIC), 100)
    assert not reads_with_original(config(DYNAMIC), 101)
    assert not reads_with_original(config({"one": LONG, "two": DYNAMIC}), 41)
    assert reads_with_original(config(None), 10**6)

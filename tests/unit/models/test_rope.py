"""Calls that may reach positions where a draft token would change the frequencies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from draftlens.core.errors import InputError
from draftlens.models.rope import check_reach

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

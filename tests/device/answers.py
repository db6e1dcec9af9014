"""Answers of a tiny pair on the devices, whose rounds are counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from statistics import median_low
from typing import Any

from families import FAMILIES, inputs, tokenizer
from stock import draft, target

from device.counts import Round, rounds_of
from device.machine import MACHINE
from device.runtime import copied
from draftlens.request import Request, open_call

NEW = 28
NEVER = tokenizer().pad_token_id
METHODS: Mapping[str, Any] = {
    "plain": "plain",
    "chain": {"num_speculative_tokens": 4},
    "tree": {"tree": "eagle"},
    "specvlm chain": {"method": "specvlm", "num_speculative_tokens": 4},
    "specvlm": {"method": "specvlm", "tree": "eagle"},
    "tabed": {"method": "tabed", "num_speculative_tokens": 4},
    "lookup": {"method": "lookup", "num_speculative_tokens": 4},
    "hsd": {"method": "hsd", "num_speculative_tokens": 4},
    "mixed": {"method": "mixed"},
    "auto": None,
}
"""Ten methods; the last two choose what they draft."""

SAMPLED = {"do_sample": True, "temperature": 0.7, "top_k": 20}
FAMILY = next(family for family in FAMILIES if family.name == "qwen2_5_vl")


@cache
def pair(device: str = "cuda:0", kind: str = "noisy") -> tuple[Any, Any]:
    """Qwen2.5-VL of two layers, and a draft that agrees with it in part. Their answers end at a
    token that neither says."""
    models = copied(target(FAMILY), device), copied(draft(FAMILY, kind), device)
    for model in models:
        model.generation_config.eos_token_id = NEVER
    return models


def given(rows: int) -> dict[str, Any]:
    """The prompts of one picture each, of different lengths, where processors leave them."""
    return inputs(FAMILY, "image", (0, 1, 2, 0)[:rows])


def counted(
    name: str, rows: int, sampled: bool = False, kind: str = "noisy"
) -> tuple[list[Round], list[list[int]]]:
    """The rounds of an answer by a method of `METHODS`, the prompt's first, and its tokens."""
    options = {"max_new_tokens": NEW, **(SAMPLED if sampled else {"do_sample": False})}
    request = Request(given(rows), method=METHODS[name], options=options, seed=5)
    before = MACHINE.counts.copy()
    call = open_call(*pair(kind=kind), request)
    prepared = MACHINE.counts.since(before)
    rounds = rounds_of(MACHINE.counts, _rounds(call.plan.schedule(call.session), rows))
    prompt = rounds[0]
    rounds[0] = Round(
        prompt.launches + prepared.launches.total(),
        prompt.outside + prepared.outside.total(),
        prompt.waits + prepared.waits.total(),
        prompt.own_waits + prepared.own_waits,
        prompt.counts,
    )
    prompt.counts.waits.update(prepared.waits)
    return rounds, [row.tokens for row in call.sequences]


def _rounds(chunks: Any, rows: int) -> Any:
    """One item for each round; rows that have ended yield nothing, so that these answers must not
    end early."""
    for number, chunk in enumerate(chunks, start=1):
        if number % rows == 0:
            yield chunk


def steady(rounds: Sequence[Round]) -> dict[str, int]:
    """The numbers that a long answer goes on with: the first round also reads the draft's prompt,
    and the last ones may be cut."""
    middle = rounds[2:-1]
    return {
        "launches": median_low([each.launches for each in middle]),
        "outside": max(each.outside for each in middle),
        "waits": max(each.waits for each in middle),
        "prompt waits": rounds[0].own_waits
        + rounds[1].own_waits
        - min(each.own_waits for each in middle),
    }

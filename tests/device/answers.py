"""Answers of a tiny pair on the devices, whose rounds are counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from families import FAMILIES, inputs, tokenizer
from stock import draft, target

from draftlens.core import tree as trees
from draftlens.core.result import Chunk
from draftlens.decoding import Session, step
from draftlens.drafting.draft_rows import levels
from draftlens.request import Request, open_call
from tests.device.counts import Round, rounds_of
from tests.device.machine import MACHINE
from tests.device.runtime import copied

NEW = 15
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
    "mixed": {"method": "mixed", "copying": {"name": "lookup", "window": 1}},
    "auto": {"tree": "auto"},
}
"""Ten methods; the last two choose what they draft."""

COUNTED: Mapping[tuple[int, bool], tuple[str, ...]] = {
    (1, False): tuple(METHODS),
    (4, False): ("plain", "chain", "tree", "specvlm chain", "tabed", "lookup"),
    (1, True): ("plain", "chain", "tree", "tabed"),
    (4, True): ("chain", "tree"),
}
"""By number of rows, and whether tokens are sampled, the methods that are counted."""

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


def make_tables(device: str = "cuda:0") -> None:
    """What answers make once and keep."""
    place = torch.device(device)
    eagle = [trees.cut(trees.from_paths(trees.EAGLE_PATHS), depth) for depth in range(6)]
    for topology in (*map(trees.chain, range(8)), *eagle):
        trees.ancestors(topology, place)
        trees.depths(topology, place)
        levels(topology, place)


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
    rounds = rounds_of(MACHINE.counts, _steps(call.session))
    prompt = rounds[0]
    rounds[0] = replace(
        prompt,
        launches=prompt.launches + prepared.launches.total(),
        outside=prompt.outside + prepared.outside.total(),
        waits=prompt.waits + prepared.waits.total(),
        own_waits=prompt.own_waits + prepared.own_waits,
    )
    prompt.counts.waits.update(prepared.waits)
    return rounds, [row.tokens for row in call.sequences]


def _steps(session: Session) -> Iterator[list[Chunk]]:
    while not session.done:
        yield step(session)


def steady(rounds: Sequence[Round], rows: int) -> dict[str, int]:
    """The numbers that a long answer goes on with. The first round also reads the draft's prompt;
    in the last ones rows have ended."""
    middle = [each for each in rounds[2:] if each.rows == rows][:-1]
    for_draft = rounds[1].own_waits - min(each.own_waits for each in middle)
    return {
        "outside": max(each.outside for each in middle),
        "waits": max(each.waits for each in middle),
        "prompt waits": rounds[0].own_waits + for_draft,
    }

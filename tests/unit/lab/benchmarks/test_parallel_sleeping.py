"""Models that sleep say what their script says, and do the work that virtual time counts."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from links import ScriptedLink

import draftlens
from benchmarks.parallel_parts.sleeping_model import (
    PROMPT,
    SleepingModel,
    inputs,
    scripted_answers,
    set_script,
    set_seconds,
    sleeping_model,
)
from benchmarks.parallel_parts.virtual import Costs, drawn_text, lockstep, serial
from draftlens.core.stats import Clock, Stats
from draftlens.core.tree import chain
from draftlens.decoding import Plan, Session
from draftlens.drafting.draft_prompt import DraftPromptBuilder
from draftlens.drafting.model_drafter import ModelDrafter
from draftlens.methods.parallelvlm.draft_inputs import OwnPrompt
from draftlens.methods.parallelvlm.loop import decode
from draftlens.methods.parallelvlm.schedule import Schedule
from draftlens.methods.parallelvlm.target_side import ParallelDrafter
from draftlens.models.adapter import Backbone
from draftlens.processes.shared_model import share
from draftlens.processes.shared_tensors import unpack

TOKENS = 64
TEXT = drawn_text(TOKENS, 0.8, seed=5)
COSTS = Costs(lambda _: 4.0, lambda _: 1.0)
EVERYWHERE: dict[str, Any] = {"max_new_tokens": TOKENS, "do_sample": False}


def scripted_pair() -> tuple[SleepingModel, SleepingModel, list[int]]:
    """Target, draft and the target's answer."""
    truth, drafted = scripted_answers(TEXT, seed=5)
    target = sleeping_model()
    draft = sleeping_model()
    set_script(target, truth)
    set_script(draft, drafted)
    return target, draft, truth


def in_lane(target: Any, draft: Any, schedule: Schedule, seed: int) -> tuple[list[int], Session]:
    """The answer with a scripted lane, and its session."""
    backbone = Backbone.of(target)
    draft_backbone = Backbone.of(draft)
    reader = DraftPromptBuilder(draft_backbone)
    serial_drafter = ModelDrafter(reader, chain(schedule.longest), backbone.vocab_size)
    link = ScriptedLink(draft_backbone, seed)
    drafter = ParallelDrafter(link, OwnPrompt(), schedule, backbone.vocab_size, serial_drafter)
    session = Session(backbone, Plan(drafter), Clock(Stats()))
    given = inputs()
    [row] = session.add(backbone.prepare(given, **EVERYWHERE), [0], given)
    for _ in decode(session):
        pass
    return row.tokens, session


def test_stock_generate_says_the_script() -> None:
    target, draft, truth = scripted_pair()
    said = target.generate(**inputs(), **EVERYWHERE)[0, len(PROMPT) :].tolist()
    assert said == truth
    drafted = draft.generate(**inputs(), **EVERYWHERE)[0, len(PROMPT) :].tolist()
    right = [mine == token for mine, token in zip(drafted, truth, strict=True)]
    assert right == [token.rank == 0 for token in TEXT]


@pytest.mark.parametrize("gamma", [1, 4, 9])
def test_a_serial_chain_makes_the_passes_of_virtual_time(gamma: int) -> None:
    target, draft, truth = scripted_pair()
    method = {
        "method": "speculative",
        "num_speculative_tokens": gamma,
    }
    result = draftlens.generate(target, inputs(), draft=draft, method=method, max_new_tokens=TOKENS)
    play = serial(TEXT, COSTS, gamma)
    assert result.tokens == [truth]
    assert result.stats.passes == play.rounds
    assert result.stats.accepted == play.accepted


@pytest.mark.parametrize("window", [1, 2, 5, 9])
@pytest.mark.parametrize("seed", range(2))
def test_lockstep_makes_the_passes_of_virtual_time(window: int, seed: int) -> None:
    target, draft, truth = scripted_pair()
    said, session = in_lane(target, draft, Schedule(window), seed)
    play = lockstep(TEXT, COSTS, window, starts_ready=True)
    assert said == truth
    assert session.stats.passes == play.rounds
    assert session.drafter.corrections == sum(token.rank > 0 for token in TEXT)


@pytest.mark.parametrize("seed", range(4))
def test_whoever_moves_when_the_answer_is_the_script(seed: int) -> None:
    target, draft, truth = scripted_pair()
    said, _ = in_lane(target, draft, Schedule(), seed)
    assert said == truth


def test_a_forward_takes_the_time_of_its_width() -> None:
    target, _, _ = scripted_pair()
    set_seconds(target, lambda width: 0.02 * width)
    began = time.perf_counter()
    target(input_ids=torch.ones(1, 3, dtype=torch.long))
    assert time.perf_counter() - began >= 0.06


def test_scripts_and_times_change_in_the_shared_memory() -> None:
    """The drafting process needs no restart for another script."""
    target, _, truth = scripted_pair()
    there = unpack(share(target)).build()
    set_script(target, truth[::-1])
    set_seconds(target, lambda width: 0.001 * width)
    said = there.generate(**inputs(), **EVERYWHERE)[0, len(PROMPT) :].tolist()
    assert said == truth[::-1]
    assert there.model.seconds[4] == 0.005

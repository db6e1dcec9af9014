"""Conversations of tiny models with pictures and clips in any turn, and what stock `generate`
answers when it reads the whole of them."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from families import FAMILIES, SPECIAL, Family, tokenizer
from forming import FormText, StockForm, form_of_text
from hypothesis import event
from language_models import language_part
from made_families import MADE
from rotary import ROTARY, is_refused, lengths_of, renewed
from stock import NEAR_TIE, answers, noisy, target
from transformers.video_utils import VideoMetadata

from draftlens.core.errors import InputError
from draftlens.core.result import Result
from draftlens.core.sequence import Batch as Histories
from draftlens.core.stats import Clock, Stats
from draftlens.decoding.admission import NAMESPACE
from draftlens.models.adapter import Backbone
from draftlens.models.prompt_cache import PromptCache
from draftlens.request import Request
from draftlens.streaming import Stream

BY_NAME = {family.name: family for family in (*FAMILIES, *ROTARY, *MADE)}
FRAMES = 4
EOS = tokenizer().eos_token_id


@dataclass(frozen=True)
class Turn:
    """A question: the media before it, and how many letters it has."""

    media: str = ""  # "i" for a picture, "v" for a clip, one letter each
    letters: int = 9


@dataclass(frozen=True)
class Conversation:
    """The questions of one user, in order; `seed` makes words and pixels."""

    turns: tuple[Turn, ...]
    seed: int = 0


def text_of(family: Family, talk: Conversation, replies: Sequence[str], count: int) -> str:
    """The first `count` questions with the answers between them."""
    text = ""
    for number, turn in enumerate(talk.turns[:count]):
        words = random.Random(f"{talk.seed} {number}").choices(ascii_lowercase, k=turn.letters)
        media = "".join({"i": family.image, "v": family.video}[kind] or "" for kind in turn.media)
        text += f"User: {media}{''.join(words)}\nAssistant:"
        if number < count - 1:
            text += replies[number] + "\n"
    return text


def inputs_of(
    family: Family, talks: Sequence[Conversation], replies: Sequence[Sequence[str]], count: int
) -> dict[str, Any]:
    """The processor's output for a batch of conversations after `count` questions each."""
    texts, images, videos = [], [], []
    for talk, said in zip(talks, replies, strict=True):
        texts.append(text_of(family, talk, said, count))
        own = []
        for number, turn in enumerate(talk.turns[:count]):
            noise = np.random.default_rng([talk.seed, number])
            for kind in turn.media:
                if kind == "i":
                    height, width = noise.choice([16, 20, 28], 2)
                    own.append(noise.integers(0, 256, (height, width, 3), dtype=np.uint8))
                else:
                    videos.append(noise.integers(0, 256, (FRAMES, 16, 24, 3), dtype=np.uint8))
        images.append(own)
    options: dict[str, Any] = {"images": images} if any(images) else {}
    if videos:
        metadata = VideoMetadata(
            total_num_frames=FRAMES, fps=2.0, frames_indices=list(range(FRAMES))
        )
        options |= {
            "videos": videos,
            "video_metadata": [metadata] * len(videos),
            "do_sample_frames": False,
        }
    return dict(family.tools(text=texts, padding=True, return_tensors="pt", **options))


def models_of(
    family: Family, draft: float | str | None, cache: PromptCache
) -> tuple[Backbone, Any]:
    """Target and draft that share a prompt cache. The draft is the target with an amount of noise,
    or with `words` its language model."""
    backbone = Backbone(target(family))
    backbone.prompt_cache = cache
    if draft is None:
        return backbone, None
    drafting = Backbone(_draft_of(family, draft))
    drafting.prompt_cache = cache
    return backbone, drafting


@functools.cache
def _draft_of(family: Family, draft: float | str) -> Any:
    model = target(family)
    return language_part(model) if draft == "words" else noisy(model, float(draft))


def answer(
    models: tuple[Backbone, Any],
    given: Mapping[str, Any],
    method: Any,
    namespace: str | None = "",
    **options: Any,
) -> Result:
    request = Request(
        given,
        method=method,
        seed=options.pop("seed", None),
        options={"do_sample": False, **options},
        extras={NAMESPACE: namespace},
    )
    return Stream(*models, request, Clock(Stats())).run()


@dataclass(frozen=True)
class Batch:
    """Conversations of one family after `count` questions each: the arguments of `inputs_of`."""

    family: Family
    talks: tuple[Conversation, ...]
    replies: tuple[tuple[str, ...], ...]
    count: int


@functools.lru_cache(maxsize=128)
def inputs_of_batch(batch: Batch) -> dict[str, Any]:
    """`inputs_of`, once for all methods that are asked the same."""
    return inputs_of(batch.family, batch.talks, batch.replies, batch.count)


@functools.lru_cache(maxsize=128)
def stock_of_batch(
    batch: Batch, new: int, form: FormText | None = None
) -> tuple[list[list[int]], Sequence[torch.Tensor]]:
    """`scored_by_stock` of the same."""
    given = inputs_of_batch(batch)
    options: dict[str, Any] = {"max_new_tokens": new}
    if form is not None:
        grammar, length = form_of_text(form).grammar, given["input_ids"].shape[1]
        options["logits_processor"] = [StockForm(grammar, length, [EOS])]
        options["eos_token_id"] = EOS
    return scored_by_stock(target(batch.family), given, **options)


def scored_by_stock(
    model: Any, given: Mapping[str, Any], **options: Any
) -> tuple[list[list[int]], Sequence[torch.Tensor]]:
    """The tokens of stock `generate`, near-ties included, and the scores of each step."""
    output = renewed(model).generate(
        **given, do_sample=False, return_dict_in_generate=True, output_scores=True, **options
    )
    return answers(model, given, output.sequences, **options), output.scores


@contextmanager
def recorded_leads() -> Iterator[list[list[float]]]:
    """By how much the best token leads, for each step of plain decoding and row of the call."""
    leads: list[list[float]] = []
    ranking = Histories.ranking

    def recorded(self: Histories, *args: Any) -> torch.Tensor:
        values = ranking(self, *args)
        best = values[:, 0].topk(2).values
        own = [math.inf] * self.histories[0].num_rows  # of rows that have left
        for history, lead in zip(self.histories, (best[:, 0] - best[:, 1]).tolist(), strict=True):
            own[history.row] = lead
        leads.append(own)
        return values

    with patch.object(Histories, "ranking", recorded):
        yield leads


def first_difference(
    found: list[list[int]], rows: list[list[int]], scores: Sequence[torch.Tensor]
) -> int | None:
    """The first row whose tokens are not those of stock `generate`, but for a near-tie of the
    scores; None if there is none."""
    for number, (row, expected) in enumerate(zip(found, rows, strict=True)):
        if row == expected:
            continue
        place = next(
            (i for i, (a, b) in enumerate(zip(row, expected, strict=False)) if a != b),
            min(len(row), len(expected)),
        )
        best = scores[min(place, len(scores) - 1)][number].topk(2).values
        if float(best[0] - best[1]) > NEAR_TIE:
            return number
    return None


def differing(
    model: Any, given: Mapping[str, Any], found: list[list[int]], **options: Any
) -> int | None:
    """The same with what stock `generate` answers here."""
    return first_difference(found, *scored_by_stock(model, given, **options))


def answer_of_stock(model: Any, given: Mapping[str, Any], **options: Any) -> list[list[int]]:
    """The tokens of stock `generate`, near-ties included."""
    sequences = renewed(model).generate(**given, do_sample=False, **options)
    return answers(model, given, sequences, **options)


def reply(tokens: Sequence[int]) -> str:
    """An answer as the next question's prompt has it."""
    special = {tokenizer().convert_tokens_to_ids(token) for token in SPECIAL}
    text: str = tokenizer().decode([token for token in tokens if token not in special])
    return text


class PlainTwin:
    """Answers the same turns by plain decoding with the same prefill and a cache of its own."""

    def __init__(self, case: TurnsCase) -> None:
        cache = PromptCache(case.max_bytes)
        self.models = models_of(BY_NAME[case.family], None, cache)
        self.method = {"method": "plain", "prefill": dict(case.method).get("prefill")}

    def check(
        self, given: Mapping[str, Any], result: Result, namespace: str | None, **options: Any
    ) -> None:
        with recorded_leads() as leads:
            own = answer(self.models, given, self.method, namespace, **options)
        scores = [torch.tensor([[lead, 0.0] for lead in step]) for step in leads]
        row = first_difference(result.tokens, own.tokens, scores)
        assert row is None, f"row {row} differs from plain decoding"
        assert result.approximate == own.approximate


@dataclass(frozen=True)
class TurnsCase:
    """A batch of conversations, all with the same number of turns. Where the method names a
    prefill, the answers are compared with those of plain decoding.

    Args:
        max_bytes: of the prompt cache.
        namespaces: of the turns, in turn.
        repeats: whether every turn is asked twice.
        edits: answers that are cut in half, one by one, before the last question is asked again.
        forms: of the turns' answers, in turn.
    """

    family: str
    talks: tuple[Conversation, ...]
    method: tuple[tuple[str, Any], ...]
    draft: float | str | None
    new: tuple[int, ...]
    max_bytes: int
    namespaces: tuple[str | None, ...] = ("",)
    repeats: bool = False
    edits: tuple[int, ...] = ()
    forms: tuple[FormText | None, ...] = (None,)


def check_turns(case: TurnsCase) -> int:
    """Every answer is stock's, or that of `PlainTwin`; returns the tokens that were not read
    again."""
    family = BY_NAME[case.family]
    twin = PlainTwin(case) if "prefill" in dict(case.method) else None
    cache = PromptCache(case.max_bytes)
    models = models_of(family, case.draft, cache)
    replies: list[list[str]] = [[] for _ in case.talks]
    drafts = ("method", "plain") not in case.method
    cached = 0
    questions = list(enumerate(case.new, 1))
    last = questions[-1:] * len(case.edits)
    for place, (count, new) in enumerate([*questions, *last]):
        if place >= len(questions):
            for said in replies:
                number = case.edits[place - len(questions)] % len(said)
                said[number] = said[number][: len(said[number]) // 2]
        batch = Batch(family, case.talks, tuple(map(tuple, replies)), count)
        given = inputs_of_batch(batch)
        namespace = case.namespaces[count % len(case.namespaces)]
        form = case.forms[count % len(case.forms)]
        if is_refused(case.family, lengths_of(given), new, drafts):
            with pytest.raises(InputError, match="rotary positions"):
                answer(models, given, dict(case.method), namespace, max_new_tokens=new)
            event("a turn is refused")
            tokens = answer_of_stock(models[0].model, given, max_new_tokens=new)
            for said, row in zip(replies, tokens, strict=True):
                said.append(reply(row))
            continue
        options: dict[str, Any] = {"max_new_tokens": new}
        if form is not None:
            options |= {"form": form_of_text(form), "tokenizer": tokenizer(), "eos_token_id": EOS}
            event("a turn has a form")
        for _ in range(1 + case.repeats):
            result = answer(models, given, dict(case.method), namespace, **options)
            assert result.lossless is not bool(result.approximate)
            assert cache.nbytes <= case.max_bytes
            cached += result.stats.cached_tokens
            if twin is not None:
                twin.check(given, result, namespace, **options)
                continue
            row = first_difference(result.tokens, *stock_of_batch(batch, new, form))
            assert row is None, f"row {row} of turn {count} differs"
            assert result.lossless
        for said, tokens in zip(replies, result.tokens, strict=True):
            said.append(reply(tokens))
    return cached

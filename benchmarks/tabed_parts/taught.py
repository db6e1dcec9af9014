"""Answers with what the target and every view of the draft say in front of each token.

Everything is computed once for an answer. In greedy and coupled decoding all views read the same
answer, so what any mixture would have proposed, and how often it would have been right, follows
exactly (`tabed_parts.replay`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from draftlens_lab.bench.clips import Clip
from torch import Tensor

from draftlens import TABED
from draftlens.core import tree as trees
from draftlens.core.sampling import gumbel
from draftlens.decoding.plan import ExtraSource, TargetContext
from draftlens.drafting.draft_prompt import DraftPrompt
from draftlens.drafting.draft_rows import score_tokens, with_ids_of_the_target
from draftlens.engine import Engine
from draftlens.inputs import Inputs
from draftlens.methods.tabed.given_views import VIEWS_EXTRA
from draftlens.methods.tabed.views import Source, make_views
from draftlens.models.adapter import Backbone
from tabed_parts.kinds import read
from tabed_parts.store import load_or_make


@dataclass(frozen=True)
class Answer:
    """What the target says; the same for every draft.

    Args:
        tokens: the T tokens of the answer.
        log_p: log p in front of each of them, float32 ``[T, V]``.
    """

    tokens: tuple[int, ...]
    log_p: Tensor


@dataclass(frozen=True)
class Taught:
    """One answer.

    Args:
        kind: of the prompt, see `kinds`.
        tokens: the T tokens of the target's answer.
        log_q: log q_v in front of each token, float32 ``[m, T, V]``.
        log_p: log p there, float32 ``[T, V]``.
        noise: what is added to choose a token, float32 ``[T, V]``; None in greedy decoding.
        same: for each view the first view that reads the same prompt.
        longest: `max_new_tokens` of the answer.
    """

    kind: str
    tokens: tuple[int, ...]
    log_q: Tensor
    log_p: Tensor
    noise: Tensor | None
    same: tuple[int, ...]
    longest: int


class Teacher:
    """Asks the target for answers, and every view of the draft about each of their tokens.

    Args:
        engine: a pair.
        views: as `TABED` takes them; none of them reads the target's cache.
        longest: `max_new_tokens` of the answers.
        folder: keeps what was computed, by draft, so that a run that was stopped goes on where it
            was, and another draft finds the target's answers; None to keep nothing.
        name: of the draft, in that folder.
    """

    def __init__(
        self, engine: Engine, views: Sequence[Any], longest: int, folder: Path | None, name: str
    ) -> None:
        assert engine.draft is not None
        self.engine = engine
        self.target = engine.target.backbone
        self.draft = engine.draft.backbone
        self.views = make_views(views)
        self.plan = engine.plan(TABED(views=list(views)))
        self.longest = longest
        self.folder = folder
        self.name = name

    def taught(self, kind: str, number: int, clip: Clip, seed: int | None) -> Taught:
        """The answer to a prompt.

        Args:
            kind: of the prompt.
            number: of the prompt among those of its kind.
            clip: the prompt.
            seed: samples at temperature 1 with this seed; None for greedy decoding.
        """
        inputs = functools.cache(lambda: read(self.engine, clip))
        rule = "greedy" if seed is None else f"seed-{seed}"
        stem = f"{kind}-{number}-{self.longest}-{rule}".replace(" ", "-").replace(",", "")

        def answer() -> Answer:
            return self.answer(inputs(), seed)

        def taught() -> Taught:
            known = load_or_make(self.folder, f"target/{stem}", Answer, answer)
            return self.ask(kind, inputs(), known, seed)

        return load_or_make(self.folder, f"{self.name}/{stem}", Taught, taught)

    def answer(self, inputs: Inputs, seed: int | None) -> Answer:
        """The target's answer to a prompt."""
        options: dict[str, Any] = {"max_new_tokens": self.longest}
        if seed is not None:
            options |= {"do_sample": True, "top_k": 0, "temperature": 1.0}
        result = self.engine.answer(inputs, method="plain", seed=seed, **options).run()
        tokens = tuple(result.tokens[0])
        prompt = self.target.encode(self.target.prepare(inputs.target, **options))
        whole = DraftPrompt(prompt, lambda cache: self.target.prefill(prompt, cache))
        return Answer(tokens, _behind(self.target, self.target.vocab_size, whole, tokens))

    def ask(self, kind: str, inputs: Inputs, answer: Answer, seed: int | None) -> Taught:
        """What every view of a prompt says about each token of the answer."""
        prompt = self.target.encode(self.target.prepare(inputs.target, max_new_tokens=self.longest))
        context = TargetContext(prompt, self.target.new_cache(prompt, 1))
        given = inputs.target if inputs.draft is None else inputs.draft
        origin = ExtraSource(1, chat=self.engine.processors.chat_source(inputs))
        made = self.plan.extras[VIEWS_EXTRA](None, origin)
        source = Source(self.draft, given, made, context)
        drafts = [view.read(source) for view in self.views]
        size = self.target.vocab_size
        log_q = [_behind(self.draft, size, draft, answer.tokens) for draft in drafts]
        return Taught(
            kind,
            answer.tokens,
            torch.stack(log_q),
            answer.log_p,
            None if seed is None else _noise(seed, len(answer.tokens), size),
            _same(drafts),
            self.longest,
        )


def _noise(seed: int, number: int, vocab_size: int) -> Tensor:
    """What coupled sampling adds to the scores of each token, ``[T, V]``."""
    return gumbel(torch.tensor([seed]), torch.arange(number), vocab_size).float()


def _behind(model: Backbone, vocab_size: int, read: DraftPrompt, tokens: Sequence[int]) -> Tensor:
    """Log probabilities in front of each token of an answer, ``[T, V]``."""
    cache = model.new_cache(read.prompt, len(tokens))
    first = read.fill(cache)
    assert first is not None
    logits = [with_ids_of_the_target(first, vocab_size)[0]]
    if len(tokens) > 1:
        forwarded = torch.tensor([tokens[:-1]])
        width = forwarded.shape[1]
        causal = torch.ones(width, width, dtype=torch.bool).tril()
        mask = trees.attention_mask(cache.lengths, causal)
        positions = read.prompt.positions(torch.arange(width)[None])
        logits.append(score_tokens(model, vocab_size, forwarded, positions, cache, mask)[0])
    return torch.cat(logits).float().log_softmax(-1)


def _same(drafts: Sequence[DraftPrompt]) -> tuple[int, ...]:
    """For each view the first one with the same prompt."""
    firsts = []
    for index, draft in enumerate(drafts):
        equal = [
            other
            for other in range(index)
            if draft.prompt.lengths == drafts[other].prompt.lengths
            and torch.equal(draft.prompt.embeds, drafts[other].prompt.embeds)
        ]
        firsts.append(equal[0] if equal else index)
    return tuple(firsts)

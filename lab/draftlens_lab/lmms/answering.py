"""Answers batches of chats with an engine, or with stock `generate` of its target."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftlens.engine import Engine
from draftlens.inputs import Inputs
from draftlens.verify import run_stock
from draftlens_lab.lmms.requests import Message, cut, same_media

STOCK = "stock"
"""Named as a method, transformers' own `generate` answers."""


@dataclass(frozen=True)
class Answer:
    """An answer, and the numbers of tokens of its prompt and of itself."""

    text: str
    prompt_tokens: int
    tokens: int


class Answering:
    """Answers chats and adds up what that takes.

    Args:
        stock: whether the target's stock `generate` answers.
        num_frames: frames to sample from each clip.

    Attributes:
        seconds: of `generate`, from the processors' output to the last token.
        tokens: of all answers.
        passes: verification passes, and `emitted` the tokens that they emitted.
    """

    def __init__(self, engine: Engine, stock: bool, num_frames: int) -> None:
        self.engine = engine
        self.stock = stock
        self.num_frames = num_frames
        self.reset()

    def reset(self) -> None:
        """Set the counts to zero."""
        self.seconds = 0.0
        self.tokens = 0
        self.passes = 0
        self.emitted = 0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens that a verification pass emits; 0 without passes, as with stock `generate`."""
        return self.emitted / self.passes if self.passes else 0.0

    def answer(
        self, chats: Sequence[Sequence[Message]], options: dict[str, Any], until: Sequence[str]
    ) -> list[Answer]:
        """Answer a batch of chats.

        Args:
            options: of `generate`.
            until: strings that end an answer; it is cut before the first.
        """
        answers: dict[int, Answer] = {}
        for rows in same_media(chats):
            messages = [list(chats[row]) for row in rows]
            inputs = self.engine.read(messages=messages, num_frames=self.num_frames)
            lengths = inputs.target["attention_mask"].sum(dim=1).tolist()
            tokens = self._generate(inputs, {**options, "stop": list(until) or None})
            self.tokens += sum(map(len, tokens))
            for row, ids, length in zip(rows, tokens, lengths, strict=True):
                text = cut(self.engine.text_decoder(ids), until)
                answers[row] = Answer(text, length, len(ids))
        return [answers[row] for row in range(len(chats))]

    def _generate(self, inputs: Inputs, options: Any) -> list[list[int]]:
        if self.stock:
            request = self.engine.request(inputs, method="plain", **options)
            run = run_stock(self.engine.target.backbone, request.inputs, **request.options)
            self.seconds += run.e2e
            return run.tokens
        began = time.perf_counter()
        result = self.engine.answer(inputs, **options).run()
        self.seconds += time.perf_counter() - began
        self.passes += result.stats.passes
        self.emitted += result.stats.emitted - result.stats.first
        return result.tokens

"""Greedy answers of a model to samples of the world, in batches, through its own processor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

from PIL import Image

from draftlens.engine import Engine
from draftlens.inputs import Inputs
from draftlens.media import Video
from draftlens.media.conversation import Conversation
from draftlens_lab.world import frame_times, render, render_still
from draftlens_lab.world.samples import Sample

SECONDS = 4.0
"""Duration of a clip, the same as of the clips in the package."""

RATE = 24.0
"""Least frames per second of a clip."""

BATCH_TOKENS = 8192
"""Largest number of prompt tokens in a batch."""

BATCH_ROWS = 32
"""Largest number of samples in a batch."""

DEFAULT_SIDE = 256
"""Pixels a side of rendered pictures if the processor has no square size of its own."""


@dataclass(frozen=True)
class Answer:
    """An answer of a model.

    Args:
        text: without special tokens and surrounding space.
        tokens: token ids, including an end-of-sequence id; empty where they are not known.
    """

    text: str
    tokens: tuple[int, ...] = ()


OnAnswers = Callable[[int], None]
"""Called with the number of samples that were answered since the last call."""


class Answerer(Protocol):
    """Answers samples: a model, or a substitute in tests."""

    def answer(self, samples: Sequence[Sample], frames: int, on_answers: OnAnswers) -> list[Answer]:
        """Answer the last question of each sample, after answering the questions before it."""
        ...


class ModelAnswerer:
    """A model that answers samples by plain decoding.

    Args:
        engine: the target answers; the draft, if any, is used for its inputs only.
        side: pixels a side of rendered clips and pictures.
    """

    def __init__(self, engine: Engine, side: int) -> None:
        self.engine = engine
        self.side = side

    def answer(self, samples: Sequence[Sample], frames: int, on_answers: OnAnswers) -> list[Answer]:
        max_new_tokens = self._max_new_tokens(samples)
        answers: list[Answer] = []
        for batch in self.batches(samples, frames):
            answers += self._answer_batch(batch, frames, max_new_tokens)
            on_answers(len(batch))
        return answers

    def batches(self, samples: Sequence[Sample], frames: int) -> Iterator[Sequence[Sample]]:
        """Split samples into batches of at most `BATCH_TOKENS` prompt tokens, estimated from the
        first sample, and `BATCH_ROWS` rows."""
        if not samples:
            return
        prompt_tokens = int(self.sample_inputs(samples[:1], frames).target["input_ids"].shape[1])
        rows = max(1, min(BATCH_ROWS, BATCH_TOKENS // prompt_tokens))
        for start in range(0, len(samples), rows):
            yield samples[start : start + rows]

    def inputs(self, conversations: Sequence[Conversation]) -> Inputs:
        """The processors' output for a batch of conversations."""
        return self.engine.process(conversations)

    def sample_inputs(self, samples: Sequence[Sample], frames: int) -> Inputs:
        """The processors' output for a batch of samples with their first question."""
        return self.inputs([conversation(sample, frames, self.side) for sample in samples])

    def visual_tokens(self, sample: Sample, frames: int) -> int:
        """Number of visual tokens in the sample's prompt."""
        target = self.engine.target.backbone
        inputs = self.sample_inputs([sample], frames)
        return int(target.encode(target.prepare(inputs.target, max_new_tokens=1)).visual.sum())

    def _answer_batch(
        self, samples: Sequence[Sample], frames: int, max_new_tokens: int
    ) -> list[Answer]:
        chats = [conversation(sample, frames, self.side) for sample in samples]
        answers = self._answer_chats(chats, max_new_tokens)
        for turn in range(1, len(samples[0].turns)):
            chats = [
                _with_next_turn(chat, answer.text, sample.turns[turn].question)
                for chat, answer, sample in zip(chats, answers, samples, strict=True)
            ]
            answers = self._answer_chats(chats, max_new_tokens)
        return answers

    def _answer_chats(self, chats: Sequence[Conversation], max_new_tokens: int) -> list[Answer]:
        stream = self.engine.answer(
            self.inputs(chats), method="plain", max_new_tokens=max_new_tokens
        )
        result = stream.run()
        return [
            Answer(text.strip(), tuple(ids))
            for text, ids in zip(result.texts, result.tokens, strict=True)
        ]

    def _max_new_tokens(self, samples: Sequence[Sample]) -> int:
        """Longest answer in tokens: a quarter more than the longest right one, so that wrong
        answers end too."""
        tokenizer = self.engine.target.processor.tokenizer
        answers = [turn.answer for sample in samples for turn in sample.turns]
        longest = max((len(tokenizer(answer).input_ids) for answer in answers), default=0)
        return longest + longest // 4 + 8


def conversation(sample: Sample, frames: int, side: int) -> Conversation:
    """A sample and its first question, in the form in which `draftlens.media.conversation.read`
    reads them from files.

    Args:
        side: pixels a side of rendered clips and pictures.
    """
    chat = Conversation()
    items: list[dict[str, Any]] = []
    if sample.media == "video":
        chat.videos.append(_video(sample, frames, side))
        items.append({"type": "video"})
    else:
        for scene in sample.scenes:
            chat.images.append(Image.fromarray(render_still(scene, side)))
            items.append({"type": "image"})
    items.append({"type": "text", "text": sample.turns[0].question})
    chat.messages.append({"role": "user", "content": items})
    return chat


def dialogue(sample: Sample, frames: int, side: int) -> Conversation:
    """A sample up to its last question; the questions before it have their right answers.

    Args: as for `conversation`.
    """
    chat = conversation(sample, frames, side)
    for before, turn in pairwise(sample.turns):
        chat = _with_next_turn(chat, before.answer, turn.question)
    return chat


def render_side(processor: Any) -> int:
    """Pixels a side at which to render: the size that the processor scales to if that is square,
    else DEFAULT_SIDE."""
    part = getattr(processor, "video_processor", None)
    part = part or getattr(processor, "image_processor", None)
    size = dict(getattr(part, "size", None) or {})
    height, width = size.get("height"), size.get("width")
    return int(height) if height is not None and height == width else DEFAULT_SIDE


def _with_next_turn(chat: Conversation, answer: str, question: str) -> Conversation:
    reply = {"role": "assistant", "content": [{"type": "text", "text": answer}]}
    request = {"role": "user", "content": [{"type": "text", "text": question}]}
    return replace(chat, messages=[*chat.messages, reply, request])


def _video(sample: Sample, frames: int, side: int) -> Video:
    rate = max(RATE, frames / SECONDS)
    times = tuple(share * SECONDS for share in frame_times(frames))
    total = round(rate * SECONDS)
    indices = tuple(min(round(time * rate), total - 1) for time in times)
    pixels = render(sample.scenes[0], frames, side)
    return Video("", pixels, times, indices, rate, total, SECONDS)

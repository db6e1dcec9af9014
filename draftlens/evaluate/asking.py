"""Asking a model as a user would: conversations, the model's own processor, greedy answers, in
batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from PIL import Image

from draftlens.api import Engine, Inputs
from draftlens.media import Video
from draftlens.media.conversation import Conversation
from draftlens.world import frame_times, render, render_still
from draftlens.world.samples import Sample

SECONDS, RATE = 4.0, 24.0  # of a clip, as those in the package
BATCH_TOKENS, BATCH_ROWS = 8192, 32  # most prompt tokens and rows that are answered together
DEFAULT_SIDE = 256  # pixels, where the processor has no size of its own


@dataclass(frozen=True)
class Answer:
    """What a model said.

    Args:
        text: without special tokens and the space around it.
        tokens: its ids, an ending end-of-sequence id included; empty where they are not known.
    """

    text: str
    tokens: tuple[int, ...] = ()


Done = Callable[[int], None]


class Answerer(Protocol):
    """Who is asked: a model, or in tests something that knows the truth."""

    def answer(self, samples: Sequence[Sample], frames: int, done: Done) -> list[Answer]:
        """Answers to the last questions; those before them are asked first and answered by itself.

        Args:
            samples: in any mix of kinds.
            frames: that a clip is shown as.
            done: told how many samples more are answered.
        """
        ...


class Asker:
    """A model that is asked.

    Args:
        engine: target and perhaps draft; the target answers, by plain decoding.
        side: pixels of rendered clips and pictures.
    """

    def __init__(self, engine: Engine, side: int) -> None:
        self.engine, self.side = engine, side

    def answer(self, samples: Sequence[Sample], frames: int, done: Done) -> list[Answer]:
        """See `Answerer`."""
        room = self._room(samples)
        answers: list[Answer] = []
        for batch in self.batches(samples, frames):
            answers += self._answer(batch, frames, room)
            done(len(batch))
        return answers

    def batches(self, samples: Sequence[Sample], frames: int) -> Iterator[Sequence[Sample]]:
        """As many samples together as `BATCH_TOKENS` allows, going by the first one's prompt."""
        if not samples:
            return
        one = (
            self.inputs([conversation(samples[0], frames, self.side)]).target["input_ids"].shape[1]
        )
        rows = max(1, min(BATCH_ROWS, BATCH_TOKENS // int(one)))
        for start in range(0, len(samples), rows):
            yield samples[start : start + rows]

    def inputs(self, conversations: Sequence[Conversation]) -> Inputs:
        """What the processors make of a batch."""
        return self.engine.process(conversations)

    def visual_tokens(self, sample: Sample, frames: int) -> int:
        """Tokens of the sample's prompt that stand for pixels."""
        target = self.engine.target.backbone
        inputs = self.inputs([conversation(sample, frames, self.side)])
        return int(target.encode(target.prepare(inputs.target, max_new_tokens=1)).visual.sum())

    def _answer(self, samples: Sequence[Sample], frames: int, room: int) -> list[Answer]:
        """One batch, whose samples have equally many turns."""
        chats, said = (
            [conversation(sample, frames, self.side) for sample in samples],
            list[Answer](),
        )
        for turn in range(len(samples[0].turns)):
            if turn:
                following = [sample.turns[turn].question for sample in samples]
                chats = [
                    _go_on(c, a.text, q) for c, a, q in zip(chats, said, following, strict=True)
                ]
            result = self.engine.answer(
                self.inputs(chats), method="plain", max_new_tokens=room
            ).run()
            said = [
                Answer(t.strip(), tuple(ids))
                for t, ids in zip(result.texts, result.tokens, strict=True)
            ]
        return said

    def _room(self, samples: Sequence[Sample]) -> int:
        """Longest answer, in tokens: a quarter more than the longest right one needs, so that wrong
        ones end too."""
        tokenizer = self.engine.target.processor.tokenizer
        longest = max(
            (len(tokenizer(turn.answer).input_ids) for s in samples for turn in s.turns), default=0
        )
        return longest + longest // 4 + 8


def conversation(sample: Sample, frames: int, side: int) -> Conversation:
    """What is shown and the first question, as `draftlens.media.conversation.read` would have read
    it from files."""
    chat = Conversation()
    items: list[dict[str, Any]] = []
    if sample.kind == "clip":
        chat.videos.append(_video(sample, frames, side))
        items.append({"type": "video"})
    else:
        chat.images.extend(Image.fromarray(render_still(scene, side)) for scene in sample.scenes)
        items.extend({"type": "image"} for _ in sample.scenes)
    items.append({"type": "text", "text": sample.turns[0].question})
    chat.messages.append({"role": "user", "content": items})
    return chat


def _go_on(chat: Conversation, said: str, question: str) -> Conversation:
    """The conversation with the model's own answer and the next question."""
    answer = {"role": "assistant", "content": [{"type": "text", "text": said}]}
    asked = {"role": "user", "content": [{"type": "text", "text": question}]}
    return replace(chat, messages=[*chat.messages, answer, asked])


def _video(sample: Sample, frames: int, side: int) -> Video:
    """The clip as `load_video` would have sampled it from a file."""
    rate = max(RATE, frames / SECONDS)
    times = tuple(share * SECONDS for share in frame_times(frames))
    total = round(rate * SECONDS)
    indices = tuple(min(round(time * rate), total - 1) for time in times)
    return Video("", render(sample.scenes[0], frames, side), times, indices, rate, total, SECONDS)


def side_of(processor: Any) -> int:
    """Pixels a side at which to render: what the processor shows its model if that is square, else
    DEFAULT_SIDE."""
    part = getattr(processor, "video_processor", None) or getattr(
        processor, "image_processor", None
    )
    size = dict(getattr(part, "size", None) or {})
    height, width = size.get("height"), size.get("width")
    return int(height) if height is not None and height == width else DEFAULT_SIDE

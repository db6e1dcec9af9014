"""Caption writers: a callable, or a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from draftlens.core.names import IMAGE_PROMPT, VIDEO_PROMPT
from draftlens.core.stats import Clock, Stats
from draftlens.decoding.session import Session
from draftlens.media.conversation import CaptionError, ChatSource, Conversation, Processing
from draftlens.media.rewriting import Medium
from draftlens.methods.base import Models, PlainDecoding
from draftlens.models.adapter import Backbone

Describe = Callable[[Any], str]  # From a PIL image or a `draftlens.media.Video` to its caption.

# The instruction to a model for each kind.
PROMPTS: Mapping[str, str] = {"image": IMAGE_PROMPT, "video": VIDEO_PROMPT}

BATCH = 8  # Pictures or clips that a model describes at once, at most.


class CallableWriter:
    def __init__(self, describe: Describe) -> None:
        self._describe = describe

    def write(self, media: Sequence[Medium], source: ChatSource) -> list[str]:
        """A text about each. The caller catches exceptions."""
        return [self._describe(medium.content) for medium in media]


class ModelWriter:
    """A model describes pictures and clips by greedy decoding, in batches of one kind and size,
    with prompts of equal length. The target's processor makes the inputs of the target."""

    def __init__(
        self, backbone: Backbone, is_target: bool, prompt: str | None, max_tokens: int
    ) -> None:
        self.forwards = 0  # decode forwards so far; a batch counts once
        self._backbone = backbone
        self._is_target = is_target
        self._prompt = prompt
        self._max_tokens = max_tokens

    def write(self, media: Sequence[Medium], source: ChatSource) -> list[str]:
        """Raises `CaptionError` if the model takes nothing of this kind, or if the target is to
        write and its processor is not known."""
        processing = self._processing(source)
        alike: dict[Any, list[int]] = {}
        for index, medium in enumerate(media):
            if medium.kind not in self._backbone.modalities:
                raise CaptionError(f"{self._backbone.name} takes no {medium.kind}")
            alike.setdefault((medium.kind, pixels_of(medium).shape), []).append(index)
        texts = [""] * len(media)
        for indices in alike.values():
            for first in range(0, len(indices), BATCH):
                batch = indices[first : first + BATCH]
                answers = self._answers([media[index] for index in batch], processing)
                for index, answer in zip(batch, answers, strict=True):
                    texts[index] = answer
        return texts

    def _processing(self, source: ChatSource) -> Processing:
        if not self._is_target:
            return Processing(source.process, source.decode)
        if source.target is None:
            raise CaptionError("the target's processor is not known")
        return source.target

    def _answers(self, media: Sequence[Medium], processing: Processing) -> list[str]:
        inputs = processing.process([self._question(medium) for medium in media])
        prepared = self._backbone.prepare_prompt(inputs, self._max_tokens)
        plan = PlainDecoding().plan(Models(self._backbone))
        session = Session(self._backbone, plan, Clock(Stats()))
        sequences = session.add(prepared, seeds=[0] * len(media))
        for _ in plan.schedule(session):
            pass
        self.forwards += session.stats.target_forwards
        return [processing.decode(sequence.tokens) for sequence in sequences]

    def _question(self, medium: Medium) -> Conversation:
        prompt = PROMPTS[medium.kind] if self._prompt is None else self._prompt
        items = [{"type": medium.kind}, {"type": "text", "text": prompt}]
        conversation = Conversation([{"role": "user", "content": items}])
        if medium.kind == "video":
            conversation.videos.append(medium.content)
        else:
            conversation.images.append(medium.content)
        return conversation


Writer = CallableWriter | ModelWriter


def pixels_of(medium: Medium) -> Any:
    """The pixels of a picture, uint8 ``[H, W, 3]``, or of a clip's frames, ``[T, H, W, 3]``."""
    if medium.kind == "video":
        return np.asarray(medium.content.frames)
    return np.asarray(medium.content)

"""Captions instead of pictures: the view C of TABED."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from draftlens.core.prefill_readings import NO_READINGS
from draftlens.drafting.draft_prompt import DraftPrompt
from draftlens.methods.tabed.views.base import Source, ViewError


@dataclass(frozen=True)
class CaptionView:
    """Each picture becomes ``image: CAPTION`` and each clip ``video: CAPTION`` (TABED, App. I.2).

    Args:
        captioner: who writes the captions, once for each picture: `"draft"` or `"target"`, a
            callable from a PIL image or a clip to a string, or the captions themselves, one for
            each picture and clip.
        prompt: what a model is asked for; None for a description of the image or the video.
        max_tokens: most tokens of a caption.
    """

    captioner: Any = "draft"
    prompt: str | None = None
    max_tokens: int = 32

    label = "caption"
    same_without_media = True
    rewriting = "caption"
    needs_eyes = False
    readings = NO_READINGS

    def __post_init__(self) -> None:
        if isinstance(self.captioner, list):
            object.__setattr__(self, "captioner", tuple(self.captioner))

    def read(self, source: Source) -> DraftPrompt:
        """See `View.read`."""
        make_inputs = source.made.get(self.label)
        if make_inputs is None:
            raise ViewError(
                "captions are made of messages: give them, or the view's inputs as "
                "draft_inputs['views']['caption']"
            )
        with source.context.observer.phase("caption"):
            inputs = make_inputs()
        return source.read(inputs)

"""Drafts for prompts with pictures, read from the pictures."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from draftlens.core.errors import DraftlensError
from draftlens.documents.reading.formats import Canvas
from draftlens.documents.reading.formats.base import page_drafts
from draftlens.documents.reading.pictures import PicturePage
from draftlens.documents.reading.pipeline import Phase, StandardPipeline, installed_ocr, untimed
from draftlens.documents.reading.targets import TargetProfile, profile_of_type


class PictureReader:
    """Reads pictures for an engine without references; `profile` is that of the target."""

    def __init__(self, profile: TargetProfile) -> None:
        self._form = profile.make_form()
        self._pipeline = StandardPipeline()

    @property
    def can_read(self) -> bool:
        return installed_ocr() is not None

    def drafts(self, pictures: Iterable[Any], phase: Phase = untimed) -> list[str]:
        """Texts, in the target's format, that an answer about RGB pictures may repeat. Errors of
        readers are ignored: they cost drafts, no answer."""
        texts: list[str] = []
        for number, picture in enumerate(pictures, start=1):
            page = PicturePage("the image", number, picture)
            try:
                regions = self._pipeline.read(page, phase)
            except DraftlensError:
                continue
            width, height = picture.size
            canvas = Canvas(page.box, width, height)
            texts += page_drafts(self._form, regions, canvas)
        return list(dict.fromkeys(texts))


@cache
def picture_reader(model_type: str, name: str = "") -> PictureReader:
    """Cached, because the reader loads its models once."""
    return PictureReader(profile_of_type(model_type, name))

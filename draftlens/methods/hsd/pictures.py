"""References read from the pictures of a prompt, where the caller gives none."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager

from draftlens.core.options import Registry
from draftlens.media.conversation import ChatSource

NO_READER = (
    "method 'hsd' has no references, and no reader of pictures is installed (tesseract, or pip "
    "install 'draftlens[ocr]'), so it drafts from the prompt and the answer alone"
)

# Imported on first use, since `documents` is above the methods.
PICTURE_READERS = Registry(
    "picture reader",
    {"pipeline": "draftlens.documents.reading.picture_drafts:picture_reader"},
)


def read_pictures(
    target: tuple[str, str],
    chat: ChatSource,
    phase: Callable[[str], AbstractContextManager[None]],
) -> list[list[str]]:
    """References of each row; empty without pictures, and with a warning without a reader. The
    target's `model_type` and name decide the format of the texts; `phase` measures `layout` and
    `read`."""
    if not any(conversation.images for conversation in chat.conversations):
        return []
    reader = PICTURE_READERS["pipeline"](*target)
    if not reader.can_read:
        warnings.warn(NO_READER, stacklevel=2)
        return []
    return [reader.drafts(conversation.images, phase) for conversation in chat.conversations]

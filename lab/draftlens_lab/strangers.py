"""Media that the embedded pair does not know.

The pair was trained on one procedural world, and describes anything else with nonsense in the same
confident words. A file is of that world if it carries the mark that `draftlens world` writes into
the metadata of its clips and pictures, or if it is one of the package's clips, byte for byte.
Nothing else is asked of a file: neither its name, nor its pixels, which would need a judgement.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from filecmp import cmp
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from PIL import Image

from draftlens.core.errors import MediaError
from draftlens.media.files import ClipFile
from draftlens.media.header import open_container
from draftlens.media.names import is_url, name_of
from draftlens.models.known_pairs import EMBEDDED
from draftlens_lab.world.files import MARK

OWN = ("shapes.mp4", "drift.mp4", "shapes.png")
"""The files of the world in the package. `bunny.mp4`, which is filmed, is not of it."""

_PICTURES = (".png",)

_log = logging.getLogger("draftlens")


def note_strangers(target: str, media: Sequence[Any]) -> None:
    """Log one line if the target is the embedded pair and some media are not of its world.

    Args:
        target: name of the target.
        media: paths, addresses, or frames and pictures in memory, which carry no mark.
    """
    if target != EMBEDDED:
        return
    strangers = [_name_of(source) for source in media if not is_of_world(source)]
    if not strangers:
        return
    named = strangers[0]
    if len(strangers) > 1:
        named = f"{named} and {len(strangers) - 1} more"
    _log.warning(
        "the pair 'embedded' is a toy that knows only draftlens's procedural world, and %s is not "
        "of that world: the answer will be wrong; name a real model as the target "
        "(`draftlens pairs` lists some)",
        named,
    )


def media_of(chats: Iterable[Iterable[Any]]) -> list[Any]:
    """The sources of all media in chats, as far as the chats are well formed."""
    sources = []
    for chat in chats:
        for message in chat:
            content = message.get("content") if isinstance(message, dict) else None
            items = content if isinstance(content, (list, tuple)) else []
            for item in items:
                sources += _sources_of(item)
    return sources


def _sources_of(item: Any) -> list[Any]:
    if not isinstance(item, dict) or item.get("type") not in ("image", "video"):
        return []
    for key in (item["type"], "path", "url"):
        if item.get(key) is not None:
            return [item[key]]
    return []


def is_of_world(source: Any) -> bool:
    """Whether a file is of the procedural world."""
    if not isinstance(source, (str, PathLike)) or is_url(source):
        return False
    path = Path(source)
    if not path.is_file():
        return False
    return _is_packaged(path) or MARK in _comment(path)


def _is_packaged(path: Path) -> bool:
    folder = Path(str(files("draftlens") / "embedded" / "clips"))
    for name in OWN:
        packaged = folder / name
        if packaged.stat().st_size == path.stat().st_size and cmp(path, packaged, shallow=False):
            return True
    return False


def _comment(path: Path) -> str:
    """The comment in a file's metadata; empty if there is none or the file is damaged."""
    try:
        if path.suffix.lower() in _PICTURES:
            with Image.open(path) as picture:
                return str(picture.info.get("Comment", ""))
        with ClipFile(str(path)) as file, open_container(str(path), file) as container:
            return container.metadata.get("comment", "")
    except (OSError, ValueError, MediaError, Image.DecompressionBombError):
        return ""


def _name_of(source: Any) -> str:
    if isinstance(source, (str, PathLike)):
        return os.path.basename(name_of(source))
    return f"what is given as {type(source).__name__}"

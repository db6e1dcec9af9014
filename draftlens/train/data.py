"""LLaVA-style JSON and JSONL -> checked entries, each of which knows its place in the file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from draftlens.core.errors import TrainingDataError

ROLES = {"system": "system", "human": "user", "gpt": "assistant"}
"""LLaVA's names of who speaks -> those of chat templates."""

_SPACE = re.compile(r"[ \t\r\n]*")
_PLACEHOLDER = re.compile(r"(<image>|<video>)")
_MEDIA_LENGTH = (
    2000  # about what an image or a frame adds to an entry, in characters; only to compare lengths
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One conversation.

    Args:
        place: file, entry (counted from 1) and line, for messages.
        turns: (role of the chat template, text with placeholders).
        images, videos: paths as the data give them, in order of their placeholders.
        counted: False for one that only fills up a batch: nothing is learnt from it.
    """

    place: str
    turns: tuple[tuple[str, str], ...]
    images: tuple[str, ...]
    videos: tuple[str, ...]
    counted: bool = True

    @property
    def length(self) -> int:
        """About how long it is, in characters; for putting entries of one length together."""
        return sum(len(text) for _, text in self.turns) + _MEDIA_LENGTH * (
            len(self.images) + 4 * len(self.videos)
        )

    def media(self, root: Path) -> list[tuple[str, Path]]:
        """(image or video, path) of each of its files."""
        return [("image", root / name) for name in self.images] + [
            ("video", root / name) for name in self.videos
        ]

    def messages(self, root: Path) -> list[dict[str, Any]]:
        """Chat-template messages with content entries in the places of the placeholders.

        The line break that LLaVA's data have between a placeholder and the text goes: templates set
        their own.
        """
        media = {"<image>": iter(self.images), "<video>": iter(self.videos)}
        messages = []
        for role, text in self.turns:
            content: list[dict[str, Any]] = []
            pieces = _PLACEHOLDER.split(text) if role == "user" else [text]
            for index, piece in enumerate(pieces):
                if index % 2:
                    kind = piece.strip("<>")
                    content.append({"type": kind, kind: root / next(media[piece])})
                elif words := _trimmed(piece, index > 0, index + 1 < len(pieces)):
                    content.append({"type": "text", "text": words})
            messages.append({"role": role, "content": content})
        return messages


def _trimmed(piece: str, behind_media: bool, before_media: bool) -> str:
    if behind_media:
        piece = piece.removeprefix("\n")
    return piece.removesuffix("\n") if before_media else piece


@dataclass(frozen=True)
class TrainingData:
    """The entries of one file.

    Args:
        path: the file.
        root: where media paths begin.
        entries: all of them.
        digest: SHA-256 of the file, in hex.
    """

    path: Path
    root: Path
    entries: list[Entry]
    digest: str


def read_data(path: Path, root: Path | None = None) -> TrainingData:
    """Read and check a file: a JSON array, or JSON objects one after the other (JSONL).

    Raises:
        TrainingDataError: it cannot be read, is no JSON (names line and column), or an entry is
            wrong (names the entry, its line and what is wrong).
    """
    try:
        raw = path.read_bytes()
        text = raw.decode("utf-8-sig")
    except OSError as error:
        raise TrainingDataError(
            f"cannot read the data {path}: {error.strerror or error}"
        ) from error
    except UnicodeDecodeError as error:
        raise TrainingDataError(
            f"{path} is not UTF-8 text: byte {error.start} cannot be read"
        ) from error
    entries: list[Entry] = []
    line, at = 1, 0
    try:
        for position, value in _values(text):
            line, at = line + text.count("\n", at, position), position
            entries.append(parse_entry(value, f"{path}, entry {len(entries) + 1} (line {line})"))
    except json.JSONDecodeError as error:
        raise TrainingDataError(
            f"{path} is no valid JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    except RecursionError as error:
        raise TrainingDataError(f"{path} is nested too deeply behind line {line}") from error
    if not entries:
        raise TrainingDataError(f"{path} holds no entries")
    return TrainingData(
        path, path.parent if root is None else root, entries, sha256(raw).hexdigest()
    )


def _values(text: str) -> Iterator[tuple[int, Any]]:
    """(position, value) of each value of a JSON array, or of a text of values one after the
    other."""
    decode = json.JSONDecoder().raw_decode
    at = _behind_space(text, 0)
    array = text.startswith("[", at)
    if array:
        at = _behind_space(text, at + 1)
        if text.startswith("]", at):
            return
    while array or at < len(text):
        value, end = decode(text, at)
        yield at, value
        at = _behind_space(text, end)
        if array:
            if text.startswith("]", at):
                break
            if not text.startswith(",", at):
                raise json.JSONDecodeError("expecting ',' or ']'", text, at)
            at = _behind_space(text, at + 1)
    if array and (behind := _behind_space(text, at + 1)) < len(text):
        raise json.JSONDecodeError("something stands behind the array", text, behind)


def _behind_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def parse_entry(value: Any, place: str) -> Entry:
    """A JSON value as an entry; keys other than image, video and conversations are ignored.

    Raises:
        TrainingDataError: names `place` and what is wrong.
    """
    if not isinstance(value, dict):
        raise TrainingDataError(f"{place}: an entry must be an object, not {_kind(value)}")
    turns = _turns(value.get("conversations"), place)
    images, videos = (_paths(value.get(key), key, place) for key in ("image", "video"))
    asked = "".join(text for role, text in turns if role == "user")
    for key, found in (("image", images), ("video", videos)):
        if asked.count(f"<{key}>") != len(found):
            raise TrainingDataError(
                f"{place}: it has {asked.count(f'<{key}>')} <{key}> placeholders in what the "
                f"human says, "
                f"but {len(found)} {key} files"
            )
    return Entry(place, turns, images, videos)


def _turns(value: Any, place: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, list) or not value:
        raise TrainingDataError(
            f"{place}: 'conversations' must be a list of turns, not {_kind(value)}"
        )
    turns = tuple(_turn(turn, f"{place}, turn {number}") for number, turn in enumerate(value, 1))
    said = [role for role, _ in turns]
    start = 1 if said[0] == "system" else 0
    wanted = ["user", "assistant"] * (len(said) // 2 + 1)
    for number, (found, right) in enumerate(zip(said[start:], wanted, strict=False), start + 1):
        if found != right:
            names = {role: name for name, role in ROLES.items()}
            raise TrainingDataError(
                f"{place}, turn {number}: it is from {names[found]!r}, not {names[right]!r}"
            )
    if said[-1] != "assistant":
        raise TrainingDataError(f"{place}: the conversation must end with an answer, from 'gpt'")
    return turns


def _turn(value: Any, place: str) -> tuple[str, str]:
    if not isinstance(value, dict):
        raise TrainingDataError(
            f"{place}: a turn must be an object with 'from' and 'value', not {_kind(value)}"
        )
    speaker, text = value.get("from"), value.get("value")
    if not isinstance(speaker, str) or speaker not in ROLES:
        raise TrainingDataError(
            f"{place}: 'from' must be one of {', '.join(ROLES)}, not {speaker!r}"
        )
    if not isinstance(text, str):
        raise TrainingDataError(f"{place}: 'value' must be text, not {_kind(text)}")
    if speaker == "gpt" and not text.strip():
        raise TrainingDataError(f"{place}: the answer is empty")
    if speaker != "human" and (found := _PLACEHOLDER.search(text)):
        raise TrainingDataError(f"{place}: {found.group()} may only stand in what the human says")
    return ROLES[speaker], text


def _paths(value: Any, key: str, place: str) -> tuple[str, ...]:
    paths = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(path, str) and path for path in paths):
        raise TrainingDataError(f"{place}: {key!r} must be a path or a list of paths")
    return tuple(paths)


def _kind(value: Any) -> str:
    kinds = {
        type(None): "missing or null",
        bool: "a boolean",
        str: "text",
        list: "a list",
        dict: "an object",
    }
    if value == []:
        return "an empty list"
    return kinds.get(type(value), "a number")

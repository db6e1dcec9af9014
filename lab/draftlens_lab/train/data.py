"""Reading of LLaVA-style JSON and JSONL files into checked entries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from draftlens.core.errors import TrainingDataError

ROLES = {"system": "system", "human": "user", "gpt": "assistant"}
"""The role in chat templates of each speaker in LLaVA's format."""

# Rough length of an image or a frame in characters. It only serves to compare entries.
_MEDIA_LENGTH = 2000
_FRAMES_PER_VIDEO = 4

_SPACE = re.compile(r"[ \t\r\n]*")
_PLACEHOLDER = re.compile(r"(<image>|<video>)")
_KINDS = {
    type(None): "missing or null",
    bool: "a boolean",
    str: "text",
    list: "a list",
    dict: "an object",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One conversation.

    Args:
        place: file, entry (counted from 1) and line, for messages.
        number: of the entry in its file, counted from 0.
        counted: False for an entry that only fills up a batch and is not trained on.
    """

    place: str
    turns: tuple[tuple[str, str], ...]
    images: tuple[str, ...]
    videos: tuple[str, ...]
    number: int = 0
    counted: bool = True

    @property
    def length(self) -> int:
        """Approximate length in characters, for grouping entries of similar length."""
        num_frames = len(self.images) + _FRAMES_PER_VIDEO * len(self.videos)
        return sum(len(text) for _, text in self.turns) + _MEDIA_LENGTH * num_frames

    @property
    def answers_after_media(self) -> tuple[int, ...]:
        """The answers, counted from 0, that come after all images and videos of the entry."""
        last = max(
            (index for index, (_, text) in enumerate(self.turns) if _PLACEHOLDER.search(text)),
            default=0,
        )
        answers = [index for index, (role, _) in enumerate(self.turns) if role == "assistant"]
        return tuple(number for number, index in enumerate(answers) if index > last)

    def media(self, root: Path) -> list[tuple[str, Path]]:
        """(``"image"`` or ``"video"``, path) of each media file of the entry."""
        images = [("image", root / name) for name in self.images]
        videos = [("video", root / name) for name in self.videos]
        return images + videos

    def messages(self, root: Path) -> list[dict[str, Any]]:
        """Chat-template messages, with media at the positions of the placeholders.

        The line break between a placeholder and the text, which LLaVA's data contain, is removed:
        chat templates write their own.
        """
        media = {"<image>": iter(self.images), "<video>": iter(self.videos)}
        messages = []
        for role, text in self.turns:
            if role == "user":
                content = _user_content(text, media, root)
            else:
                content = [_text_item(text)] if text else []
            messages.append({"role": role, "content": content})
        return messages


@dataclass(frozen=True)
class TrainingData:
    """The entries of one file.

    Args:
        digest: SHA-256 of the file, in hexadecimal.
    """

    path: Path
    root: Path
    entries: list[Entry]
    digest: str


def read_data(path: Path, root: Path | None = None) -> TrainingData:
    """Read and check a file: a JSON array, or a sequence of JSON objects (JSONL).

    Args:
        root: the folder that media paths are relative to; None for the folder of the file.
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
    entries = _parse_entries(text, path)
    if not entries:
        raise TrainingDataError(f"{path} contains no entries")
    if root is None:
        root = path.parent
    return TrainingData(path, root, entries, sha256(raw).hexdigest())


def parse_entry(value: Any, place: str) -> Entry:
    """Check a JSON value and convert it to an entry.

    Keys other than ``image``, ``video`` and ``conversations`` are ignored.
    """
    if not isinstance(value, dict):
        raise TrainingDataError(f"{place}: an entry must be an object, not {_kind(value)}")
    turns = _parse_turns(value.get("conversations"), place)
    images = _parse_paths(value.get("image"), "image", place)
    videos = _parse_paths(value.get("video"), "video", place)
    questions = "".join(text for role, text in turns if role == "user")
    _check_count(questions.count("<image>"), "image", images, place)
    _check_count(questions.count("<video>"), "video", videos, place)
    return Entry(place, turns, images, videos)


def _user_content(text: str, media: dict[str, Iterator[str]], root: Path) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    pieces = _PLACEHOLDER.split(text)
    last = len(pieces) - 1
    for index, piece in enumerate(pieces):
        if index % 2 == 1:  # `split` returns text and placeholders in turn
            kind = piece.strip("<>")
            content.append({"type": kind, kind: root / next(media[piece])})
            continue
        if index > 0:
            piece = piece.removeprefix("\n")
        if index < last:
            piece = piece.removesuffix("\n")
        if piece:
            content.append(_text_item(piece))
    return content


def _text_item(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _parse_entries(text: str, path: Path) -> list[Entry]:
    entries: list[Entry] = []
    line = 1
    previous = 0
    try:
        for position, value in _json_values(text):
            line += text.count("\n", previous, position)
            previous = position
            place = f"{path}, entry {len(entries) + 1} (line {line})"
            entries.append(replace(parse_entry(value, place), number=len(entries)))
    except json.JSONDecodeError as error:
        raise TrainingDataError(
            f"{path} is not valid JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    except RecursionError as error:
        raise TrainingDataError(f"{path} is nested too deeply after line {line}") from error
    return entries


def _json_values(text: str) -> Iterator[tuple[int, Any]]:
    position = _skip_space(text, 0)
    if text.startswith("[", position):
        return _array_values(text, position + 1)
    return _sequence_values(text, position)


def _array_values(text: str, position: int) -> Iterator[tuple[int, Any]]:
    """(position, value) of each value of the array that opens before `position`."""
    decode = json.JSONDecoder().raw_decode
    position = _skip_space(text, position)
    if text.startswith("]", position):
        return
    while True:
        value, end = decode(text, position)
        yield position, value
        position = _skip_space(text, end)
        if text.startswith("]", position):
            break
        if not text.startswith(",", position):
            raise json.JSONDecodeError("expecting ',' or ']'", text, position)
        position = _skip_space(text, position + 1)
    rest = _skip_space(text, position + 1)
    if rest < len(text):
        raise json.JSONDecodeError("unexpected text after the array", text, rest)


def _sequence_values(text: str, position: int) -> Iterator[tuple[int, Any]]:
    decode = json.JSONDecoder().raw_decode
    while position < len(text):
        value, end = decode(text, position)
        yield position, value
        position = _skip_space(text, end)


def _skip_space(text: str, position: int) -> int:
    """The position of the next character that is not white space."""
    match = _SPACE.match(text, position)
    assert match is not None
    return match.end()


def _check_count(num_placeholders: int, kind: str, files: tuple[str, ...], place: str) -> None:
    if num_placeholders != len(files):
        raise TrainingDataError(
            f"{place}: its human turns have {num_placeholders} <{kind}> placeholders, "
            f"but it lists {len(files)} {kind} files"
        )


def _parse_turns(value: Any, place: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, list) or not value:
        raise TrainingDataError(
            f"{place}: 'conversations' must be a list of turns, not {_kind(value)}"
        )
    turns = tuple(_parse_turn(turn, f"{place}, turn {n}") for n, turn in enumerate(value, 1))
    _check_roles([role for role, _ in turns], place)
    return turns


def _check_roles(roles: list[str], place: str) -> None:
    speakers = {role: speaker for speaker, role in ROLES.items()}
    first = 1 if roles[0] == "system" else 0
    for index, role in enumerate(roles[first:]):
        expected = "user" if index % 2 == 0 else "assistant"
        if role != expected:
            raise TrainingDataError(
                f"{place}, turn {first + index + 1}: it is from {speakers[role]!r}, "
                f"not {speakers[expected]!r}"
            )
    if roles[-1] != "assistant":
        raise TrainingDataError(f"{place}: the conversation must end with an answer, from 'gpt'")


def _parse_turn(value: Any, place: str) -> tuple[str, str]:
    if not isinstance(value, dict):
        raise TrainingDataError(
            f"{place}: a turn must be an object with 'from' and 'value', not {_kind(value)}"
        )
    speaker = value.get("from")
    text = value.get("value")
    if not isinstance(speaker, str) or speaker not in ROLES:
        raise TrainingDataError(
            f"{place}: 'from' must be one of {', '.join(ROLES)}, not {speaker!r}"
        )
    if not isinstance(text, str):
        raise TrainingDataError(f"{place}: 'value' must be text, not {_kind(text)}")
    if speaker == "gpt" and not text.strip():
        raise TrainingDataError(f"{place}: the answer is empty")
    placeholder = _PLACEHOLDER.search(text)
    if speaker != "human" and placeholder is not None:
        raise TrainingDataError(
            f"{place}: {placeholder.group()} may only appear in a turn from 'human'"
        )
    return ROLES[speaker], text


def _parse_paths(value: Any, key: str, place: str) -> tuple[str, ...]:
    """The paths under a key: none, one or a list of them."""
    if value is None:
        return ()
    paths = value if isinstance(value, list) else [value]
    if not all(isinstance(path, str) and path for path in paths):
        raise TrainingDataError(f"{place}: {key!r} must be a path or a list of paths")
    return tuple(paths)


def _kind(value: Any) -> str:
    if value == []:
        return "an empty list"
    return _KINDS.get(type(value), "a number")

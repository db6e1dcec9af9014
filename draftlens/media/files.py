"""Is there a readable file at all: the refusals that clips and images share."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from draftlens.media.limits import Limits, in_bytes, refusal, too_much


def check_file(source: str | Path, limits: Limits) -> str:
    """The path as text, once it is known to name a readable file of a sensible size.

    Raises:
        MediaError: missing, a folder, a device or pipe, empty, larger than `limits.max_bytes`, or
            not permitted.
    """
    path = os.fspath(source)
    try:
        status = os.stat(path)
        _check_status(path, status, limits)
        with open(
            path, "rb"
        ):  # the only honest test of permission: os.access knows neither ACLs nor effective users
            pass
    except FileNotFoundError:
        hint = "; it looks like an address: download it first" if "://" in path else ""
        raise refusal(path, f"there is no such file{hint}") from None
    except PermissionError:
        raise refusal(path, "permission was denied") from None
    except (
        OSError,
        ValueError,
    ) as error:  # ValueError: a NUL or an unencodable character in the name
        raise refusal(path, f"the system cannot open it ({_reason(error)})") from error
    return path


def _check_status(path: str, status: os.stat_result, limits: Limits) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise refusal(path, "it is a folder, not a file")
    if not stat.S_ISREG(status.st_mode):  # reading a pipe or /dev/zero would never end
        raise refusal(path, "it is a device or pipe, not a regular file")
    if status.st_size == 0:
        raise refusal(path, "it is empty (0 bytes)")
    if status.st_size > limits.max_bytes:
        raise too_much(
            path, f"it is {in_bytes(status.st_size)}", in_bytes(limits.max_bytes), "max_bytes"
        )


def _reason(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


_NEVER_IN_TEXT = bytes(
    set(range(32)) - set(b"\t\n\r\f\b\x1b")
)  # \b and escape codes occur in terminal recordings
A_VIDEO = "it is a video"
_HEIC = "it is a HEIC photo (save it as JPEG or PNG)"
_BRANDS = {
    b"heic": _HEIC,
    b"heix": _HEIC,
    b"mif1": _HEIC,
    b"avif": None,
    b"avis": None,
}  # photos in MP4's clothes


def what_instead(path: str) -> str | None:
    """What a file that no decoder recognised seems to be, as the cause of a refusal; None when it
    cannot be told."""
    try:
        with open(path, "rb") as file:
            head = file.read(4096)
    except OSError as error:
        return f"the system cannot open it ({_reason(error)})"
    if head.startswith(b"%PDF"):
        return "it is a PDF document"
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:12], A_VIDEO)
    if head[:4] == b"\x1aE\xdf\xa3" or (head[:4] == b"RIFF" and head[8:12] == b"AVI "):
        return A_VIDEO
    return "it is text" if is_text(path) else None


def is_text(path: str) -> bool:
    """Whether a readable file begins with UTF-8 text; the last character read may be cut in two."""
    with open(path, "rb") as file:
        head = file.read(4096)
    if head.translate(None, _NEVER_IN_TEXT) != head:
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start >= len(head) - 3
    return True


# A QuickTime file begins with one of these boxes; one that begins with `moov` carries its index in
# front.
_FIRST_BOXES = {b"ftyp", b"mdat", b"wide", b"free", b"skip", b"moov"}


def lacks_mp4_index(path: str) -> bool:
    """Whether the file is an MP4 or MOV whose `moov` box is absent or cut off: what a broken
    download looks like."""
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            return file.read(8)[4:] in _FIRST_BOXES and not _has_whole_box(file, size, b"moov")
    except OSError:
        return False


def _has_whole_box(file: BinaryIO, size: int, wanted: bytes) -> bool:
    """Walk the top-level boxes: 4 bytes of length, 4 of kind, and for a length of 1 the real one in
    8 more bytes."""
    at = 0
    while at + 8 <= size:
        file.seek(at)
        head = file.read(16)
        length = int.from_bytes(head[:4], "big")
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        if head[4:8] == wanted:
            return at + length <= size
        if length < 8:  # 0 means "to the end of the file"
            return False
        at += length
    return False

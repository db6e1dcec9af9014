"""Checks on media files that need no decoder, shared by clips and images."""

from __future__ import annotations

import base64
import binascii
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO
from urllib.parse import unquote_to_bytes

from draftlens.core.errors import MediaError
from draftlens.core.text import printable
from draftlens.media.limits import (
    Limits,
    display_name,
    format_bytes,
    is_data,
    is_url,
    over_limit,
    refusal,
)

SUFFIXES = {
    "video": (".avi", ".flv", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ts", ".webm"),
    "image": (".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"),
}

IS_VIDEO = "it is a video"
_IS_HEIC = "it is a HEIC photo (save it as JPEG or PNG)"
_IS_PDF = "it is a PDF document"
_IS_TEXT = "it is text"

# Major brands of photographs that are stored in the container format of MP4.
_HEIC_BRANDS = frozenset({b"heic", b"heix", b"mif1"})
_AVIF_BRANDS = frozenset({b"avif", b"avis"})

# Control characters that text never contains. Terminal recordings contain \b and escape codes.
_NON_TEXT_BYTES = bytes(set(range(32)) - set(b"\t\n\r\f\b\x1b"))

# The kinds of box that a QuickTime file can begin with. The index is in the `moov` box.
_FIRST_BOXES = frozenset({b"ftyp", b"mdat", b"wide", b"free", b"skip", b"moov"})

_HEAD_BYTES = 4096

_MOST_INDEX = 256 * 2**20
"""Bytes of the index of an MP4, MOV or AVI, such as that of a film of a day."""
_MOST_BETWEEN = 64 * 2**20
"""Bytes between two packets of a clip, in addition to the pixels of a frame."""
_PIXEL_BYTES = 8
"""Bytes of a pixel that is not compressed: four channels of 16 bits."""


class ClipFile(io.FileIO):
    """The file of a clip, which ends early (`is_exhausted`) after too many bytes without a packet.

    FFmpeg searches the next packet in one call, which reads all of a file of zeros, and some of its
    parsers keep what they read.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        # FFmpeg uses the ending. PyAV takes no name with bytes that are not UTF-8.
        self.name = os.fsencode(path).decode("utf-8", "replace")
        self.is_exhausted = False
        self._left = 8
        head = self.read(8)
        self.seek(0)
        has_index = head[4:] in _FIRST_BOXES or head[:4] == b"RIFF"
        self._budget = self._left = _MOST_INDEX if has_index else _MOST_BETWEEN

    def expect_frames(self, pixels: int) -> None:
        """From now on, packets are read, which hold at most a frame of this many pixels each."""
        self._budget = self._left = _MOST_BETWEEN + pixels * _PIXEL_BYTES
        self.is_exhausted = False

    def count_packet(self) -> None:
        self._left = self._budget

    def read(self, size: int | None = -1, /) -> bytes:
        if self._left <= 0:
            self.is_exhausted = True
        if self.is_exhausted:
            return b""
        try:
            content = super().read(size)
        except OSError as error:
            cause = f"the system cannot read it ({error.strerror})"
            raise refusal(str(self.name), cause) from error
        self._left -= len(content)
        return content

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        try:
            return super().seek(offset, whence)
        except OSError:  # a damaged index leads to a place before the start
            return -1


def check_file(source: str | os.PathLike[str], limits: Limits) -> str:
    """The path as text; raises MediaError unless it is a readable file of an acceptable size."""
    path = os.fspath(source)
    try:
        _check_status(path, os.stat(path), limits)
        # Opening is the only reliable test of permission: os.access considers neither ACLs nor
        # effective users.
        with open(path, "rb"):
            pass
    except FileNotFoundError:
        hint = ""
        if "://" in path:
            hint = "; it looks like an address, of which only http and https are read"
        raise refusal(path, f"there is no such file{hint}") from None
    except PermissionError:
        raise refusal(path, "permission was denied") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL or unencodable character in the name
        raise refusal(path, _open_failure(error)) from error
    return path


def _check_status(path: str, status: os.stat_result, limits: Limits) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise refusal(path, "it is a folder, not a file")
    if not stat.S_ISREG(status.st_mode):  # reading a pipe or /dev/zero would never end
        raise refusal(path, "it is a device or pipe, not a regular file")
    if status.st_size == 0:
        raise refusal(path, "it is empty (0 bytes)")
    if status.st_size > limits.max_bytes:
        figure = f"it is {format_bytes(status.st_size)}"
        raise over_limit(path, figure, format_bytes(limits.max_bytes), "max_bytes")


def _open_failure(error: OSError | ValueError) -> str:
    reason = str(error)
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror
    return f"the system cannot open it ({reason})"


def guess_content(path: str) -> str | None:
    """Content of an unrecognised file, such as "it is a PDF document"; None if unknown."""
    try:
        head = _read_head(path)
    except OSError as error:
        return _open_failure(error)
    if head.startswith(b"%PDF"):
        return _IS_PDF
    if head[4:8] == b"ftyp":
        return _describe_brand(head[8:12])
    is_matroska = head[:4] == b"\x1aE\xdf\xa3"
    is_avi = head[:4] == b"RIFF" and head[8:12] == b"AVI "
    if is_matroska or is_avi:
        return IS_VIDEO
    if is_text(path):
        return _IS_TEXT
    return None


def _describe_brand(brand: bytes) -> str | None:
    """A file of the MP4 family by its major brand; None for AVIF photographs."""
    if brand in _HEIC_BRANDS:
        return _IS_HEIC
    if brand in _AVIF_BRANDS:
        return None
    return IS_VIDEO


def is_text(path: str) -> bool:
    head = _read_head(path)
    if head.translate(None, _NON_TEXT_BYTES) != head:
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start >= len(head) - 3  # the end of `head` may split a character
    return True


def _read_head(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_HEAD_BYTES)


def lacks_mp4_index(path: str) -> bool:
    """Whether an MP4's `moov` box is absent or cut off, as after an interrupted download."""
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            is_quicktime = file.read(8)[4:] in _FIRST_BOXES
            return is_quicktime and not _has_whole_box(file, size, b"moov")
    except OSError:
        return False


def _has_whole_box(file: BinaryIO, size: int, kind: bytes) -> bool:
    """Whether a box of this kind lies at the top level of a QuickTime file and is complete.

    A box begins with 4 bytes of length and 4 bytes of kind. A length of 1 means that the real
    length follows in 8 more bytes, and a length of 0 that the box reaches to the end of the file.
    """
    position = 0
    while position + 8 <= size:
        file.seek(position)
        head = file.read(16)
        length = int.from_bytes(head[:4], "big")
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        if head[4:8] == kind:
            return position + length <= size
        if length < 8:
            return False
        position += length
    return False


__all__ = ["is_url", "local_copy"]


@contextmanager
def local_copy(source: str | PathLike[str], limits: Limits) -> Iterator[str | PathLike[str]]:
    """The path of a file: itself, or, inside the block, a copy of what is at an address."""
    if not is_url(source):
        yield source
        return
    address = str(source)
    with TemporaryDirectory(prefix="draftlens-") as folder:
        copy = Path(folder) / "download"
        if is_data(address):
            copy.write_bytes(_decode(address, limits))
        else:
            # Its client takes long to import.
            from draftlens.media.download import download

            download(address, copy, limits)
        try:
            yield copy
        except MediaError as error:
            raise MediaError(
                str(error).replace(str(copy), printable(display_name(address)))
            ) from error


def _decode(address: str, limits: Limits) -> bytes:
    head, comma, text = address.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise refusal(address, "of data: addresses, only data:TYPE;base64,... is read")
    size = len(text) * 3 // 4
    if size > limits.max_bytes:
        figure = f"it is about {format_bytes(size)}"
        raise over_limit(address, figure, format_bytes(limits.max_bytes), "max_bytes")
    try:
        return base64.b64decode(unquote_to_bytes(text), validate=True)
    except (binascii.Error, ValueError):  # ValueError: surrogates
        raise refusal(address, "its data is not valid base64") from None

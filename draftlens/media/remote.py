"""Media at an http or https address: downloaded to a temporary file, within limits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from draftlens.core.errors import MediaError
from draftlens.media.limits import Limits, format_bytes, over_limit, refusal

_PREFIXES = ("http://", "https://")
_CHUNK = 1 << 16
# Some servers refuse Python's own name.
_HEADERS = {"User-Agent": "draftlens"}
_SILENCE = 10.0
"""Seconds after which a server that says nothing is given up, in the longest limit."""


def is_url(source: Any) -> bool:
    """Whether a source is an address to be downloaded."""
    return isinstance(source, str) and source.lower().startswith(_PREFIXES)


@contextmanager
def local_copy(source: str | PathLike[str], limits: Limits) -> Iterator[str | PathLike[str]]:
    """The path of a file: itself, or the downloaded copy of an address while the block runs.

    Raises:
        MediaError: the address cannot be downloaded within the limits; or, from the block, with
            the address in place of the copy.
    """
    if not is_url(source):
        yield source
        return
    address = str(source)
    with TemporaryDirectory(prefix="draftlens-") as folder:
        copy = Path(folder) / "download"
        _download(address, copy, limits)
        try:
            yield copy
        except MediaError as error:
            raise MediaError(str(error).replace(str(copy), address)) from error


def _download(address: str, path: Path, limits: Limits) -> None:
    """Write what is at an address to a file.

    Raises:
        MediaError: downloads are switched off, the server fails, or a limit is exceeded.
    """
    if not limits.max_download_bytes:
        raise refusal(address, "addresses are not read here (Limits.max_download_bytes is 0)")
    deadline = time.monotonic() + limits.max_download_s
    wait = min(_SILENCE, limits.max_download_s)
    try:
        # The address begins with http or https, so no file of this machine can be meant.
        with (
            urlopen(Request(address, headers=_HEADERS), timeout=wait) as answer,
            path.open("wb") as file,
        ):
            _copy(answer, file, address, limits, deadline)
    except HTTPError as error:
        error.close()
        raise refusal(address, f"the server answers {error.code} {error.reason}") from error
    except TimeoutError as error:
        raise refusal(address, f"the server said nothing for {wait:g} seconds") from error
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise refusal(address, f"it cannot be downloaded ({reason})") from error


def _copy(answer: Any, file: BinaryIO, address: str, limits: Limits, deadline: float) -> None:
    size = int(answer.headers.get("Content-Length") or 0)
    while True:
        if size > limits.max_download_bytes:
            figure = f"it is {format_bytes(size)} or more"
            limit = format_bytes(limits.max_download_bytes)
            raise over_limit(address, figure, limit, "max_download_bytes")
        if time.monotonic() > deadline:
            figure = f"the download takes longer than {limits.max_download_s:g} seconds"
            limit = f"{limits.max_download_s:g} seconds"
            raise over_limit(address, figure, limit, "max_download_s")
        chunk = answer.read1(_CHUNK)
        if not chunk:
            return
        file.write(chunk)
        size = max(size, file.tell())

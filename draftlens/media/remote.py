"""Media at an address: a temporary file within limits."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote_to_bytes

from draftlens.core.errors import MediaError
from draftlens.core.text import printable
from draftlens.media.limits import Limits, format_bytes, over_limit, refusal
from draftlens.media.names import display_name, is_data, is_url

__all__ = ["is_url", "local_copy"]


@contextmanager
def local_copy(source: str | PathLike[str], limits: Limits) -> Iterator[str | PathLike[str]]:
    """The path of a file: itself, or the copy of what is at an address while the block runs."""
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

"""Names of files and addresses, for messages."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any

from draftlens.core.errors import ConfigError, MediaError
from draftlens.core.options import as_real, shown
from draftlens.core.text import printable, shortened

_DATA = "data:"
_PREFIXES = ("http://", "https://", _DATA)

# The user and password of an address; if its port is no number, all up to the last @,
# because a password may hold a slash.
_LOGIN = re.compile(r"(?<=//)(?:[^/?#]*@|[^/?#@]*:(?!\d*(?:[/?#]|$)).*@)", re.DOTALL)


def is_url(source: Any) -> bool:
    """Whether a source is an address rather than a path."""
    return isinstance(source, str) and source.lower().startswith(_PREFIXES)


def is_data(source: Any) -> bool:
    """Whether a source is an address that holds its data."""
    return isinstance(source, str) and source.lower().startswith(_DATA)


def display_name(source: str | PathLike[str]) -> str:
    """A path or address for messages: without its password, and without the data of `data:`.

    Example:

        >>> display_name("https://anna:secret@example.com/clip.mp4")
        'https://***@example.com/clip.mp4'
    """
    name = str(source)
    if is_data(name):
        return f"{name.partition(',')[0]:.80},..."
    return _LOGIN.sub("***@", name) if is_url(name) else name


@dataclass(frozen=True)
class Limits:
    """Bounds on the size of a clip or an image.

    They are checked before pixels are decoded wherever the header allows it. The defaults accept
    ordinary films and photographs, and refuse mistakes and attacks.

    Attributes:
        max_bytes: size of the file on disk, in bytes.
        max_pixels: width times height of an image or of one frame, in pixels.
        max_side: width or height of an image or of one frame, in pixels.
        max_ratio: the longer side of it, as a multiple of the shorter one. Processors may pad, or
            cut into tiles, by the sides.
        max_duration_s: length of a clip, in seconds.
        max_frames: frames in a clip, counted where its header or a decoding pass counts them,
            estimated otherwise.
        max_output_bytes: memory for the RGB frames of one call, in bytes (frames x height x width x
            3).
        max_download_bytes: size of a clip or image at an address; 0 refuses http and https.
        max_download_s: time for a download with its redirects, in seconds.
        max_page_s: time for each reading of a document's page (picture, characters), in seconds.
        max_page_bytes: memory that each of them may take, in bytes.
        private_addresses: whether addresses of private networks and of this machine are read. A
            server sets it to False: otherwise its clients could read hosts of its own network.
        common_formats: whether only widespread formats are read: clips in MP4, MOV, Matroska, WebM,
            AVI, FLV, GIF or MPEG with widespread codecs, and pictures in AVIF, BMP, GIF, JPEG, PNG,
            TIFF or WebP. A server sets it to True: rare decoders are tested less, and damaged files
            could make use of their errors.
        hosts: names of the hosts that are read, also after a redirect, exactly, such as
            `example.com` or, for another port than that of the scheme, `example.com:8080`; None for
            all.

    Raises:
        ConfigError: a limit is not a positive number, `private_addresses` or `common_formats` is
            not a bool, or `hosts` are no texts.
    """

    max_bytes: int = 32 * 2**30
    max_pixels: int = 100_000_000
    max_side: int = 1_000_000
    max_ratio: float = 100_000.0
    max_duration_s: float = 24 * 3600.0
    max_frames: int = 10_000_000
    max_output_bytes: int = 8 * 2**30
    max_download_bytes: int = 2 * 2**30
    max_download_s: float = 120.0
    max_page_s: float = 30.0
    max_page_bytes: int = 2**30
    private_addresses: bool = True
    common_formats: bool = False
    hosts: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("private_addresses", "common_formats"):
                if not isinstance(value, bool):
                    raise ConfigError(f"Limits.{field.name} is {shown(value)}, not True or False")
                continue
            if field.name == "hosts":
                self._check_hosts()
                continue
            number = as_real(value)
            switches_off = field.name == "max_download_bytes" and number == 0
            if number is None or (not number > 0 and not switches_off):  # also catches nan
                raise ConfigError(
                    f"Limits.{field.name} is {shown(value)}, but it must be a positive number"
                )

    def _check_hosts(self) -> None:
        hosts = self.hosts
        if hosts is None:
            return
        if not isinstance(hosts, (list, tuple)) or not all(isinstance(each, str) for each in hosts):
            raise ConfigError(f"Limits.hosts is {shown(hosts)}, not a list of names, or None")
        object.__setattr__(self, "hosts", tuple(host.lower() for host in hosts))


def refusal(name: str, cause: str) -> MediaError:
    """The error for one file or image: a single sentence with its name and the cause."""
    return MediaError(f"cannot read {printable(display_name(name))}: {printable(shortened(cause))}")


def over_limit(name: str, figure: str, limit: str, option: str) -> MediaError:
    """The error for a `figure` (a clause with its unit) that exceeds a `limit` (with its unit)."""
    cause = f"{figure}, over the limit of {limit}; pass Limits({option}=...) to allow more"
    return refusal(name, cause)


def check_pixels(name: str, width: int, height: int, limits: Limits) -> None:
    if width * height > limits.max_pixels:
        figure = f"it has {width}x{height} = {width * height} pixels"
        raise over_limit(name, figure, str(limits.max_pixels), "max_pixels")
    longer, shorter = max(width, height), max(min(width, height), 1)
    if longer > limits.max_side:
        figure = f"its longer side has {longer} pixels"
        raise over_limit(name, figure, str(limits.max_side), "max_side")
    if longer > limits.max_ratio * shorter:
        figure = f"its longer side is {longer / shorter:.0f} times the shorter one"
        raise over_limit(name, figure, f"{limits.max_ratio:g}", "max_ratio")


def format_bytes(count: int) -> str:
    """Bytes in the largest binary unit that keeps the figure at 1 or more: 1536 is "1.5 KiB"."""
    if count < 1024:
        return f"{count} bytes"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"

"""How large a clip or image may be before it is refused, and the one way a refusal is worded."""

from __future__ import annotations

from dataclasses import dataclass, fields

from draftlens.core.errors import ConfigError, MediaError


@dataclass(frozen=True)
class Limits:
    """Bounds on what a file may ask of this machine, checked before pixels are decoded wherever the
    header allows it.

    The defaults let through whatever people film and photograph, and stop what is a mistake or an
    attack.

    Attributes:
        max_bytes: size of the file on disk, in bytes.
        max_pixels: width times height of an image or of one frame, in pixels.
        max_duration_s: length of a clip, in seconds.
        max_frames: frames in a clip, counted where its header or a decoding pass counts them,
            estimated otherwise.
        max_output_bytes: memory for the RGB frames of one call, in bytes (frames x height x width x
            3).

    Raises:
        ConfigError: a limit is not a positive number.
    """

    max_bytes: int = 32 * 2**30
    max_pixels: int = 100_000_000
    max_duration_s: float = 24 * 3600.0
    max_frames: int = 10_000_000
    max_output_bytes: int = 8 * 2**30

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:  # also catches nan
                raise ConfigError(
                    f"Limits.{field.name} is {value}, but it must be a positive number"
                )


def refusal(name: str, cause: str) -> MediaError:
    """The error to raise about one file or picture: a single sentence with its name and the
    cause."""
    return MediaError(f"cannot read {name}: {cause}")


def too_much(name: str, figure: str, limit: str, option: str) -> MediaError:
    """The error to raise when `figure` passes `limit`, both with their unit; `option` is a field of
    `Limits`."""
    return refusal(
        name, f"{figure}, over the limit of {limit}; pass Limits({option}=...) to allow more"
    )


def check_pixels(name: str, width: int, height: int, limits: Limits) -> None:
    """Refuse a picture of `width` x `height` pixels that passes `limits.max_pixels`."""
    if width * height > limits.max_pixels:
        raise too_much(
            name,
            f"it has {width}x{height} = {width * height} pixels",
            f"{limits.max_pixels}",
            "max_pixels",
        )


def in_bytes(count: int) -> str:
    """`count` bytes in the largest binary unit that keeps the figure at 1 or more: 1536 -> '1.5
    KiB'."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"

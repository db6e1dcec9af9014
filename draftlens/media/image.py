"""Reads an image from a file, Pillow or an array as an upright RGB image."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from draftlens.core.errors import MediaError
from draftlens.core.locks import ForkLock
from draftlens.media.files import check_file, guess_content, local_copy
from draftlens.media.limits import Limits, check_pixels, over_limit, refusal
from draftlens.media.pixels import as_picture, is_array

# Only formats of still images. Pillow also accepts PostScript, for which it starts another program,
# and the first bytes of MPEG films.
_FORMATS = (
    "AVIF",
    "BMP",
    "DIB",
    "GIF",
    "ICNS",
    "ICO",
    "JPEG",
    "JPEG2000",
    "MPO",
    "PCX",
    "PNG",
    "PPM",
    "PSD",
    "QOI",
    "SGI",
    "TIFF",
    "WEBP",
)
_COMMON_FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "MPO", "PNG", "TIFF", "WEBP")
"""What `Limits.common_formats` leaves."""
_PAGED_FORMATS = ("TIFF",)
# `has_transparency_data` of Pillow 11 omits PA.
_ALPHA_MODES = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
# Pillow's limits and Python's warning filters are global, so one image is decoded at a time.
_PILLOW_LOCK = ForkLock()


def load_image(
    source: Any,
    *,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    frame: int = 0,
) -> Image.Image:
    """Read an image as a new, upright RGB image; the source is not modified.

    The EXIF orientation is applied, transparency is blended with white, and 16-bit grey is scaled
    to 8 bits. Of an animated file one frame is read; of an open image, its current frame.

    Args:
        source: a file or an address, a Pillow image, or an array of uint8 or uint16 [H, W], [H, W,
            1] (grey), [H, W, 3] (RGB) or [H, W, 4] (RGBA). A tensor of torch may also be [C, H, W].
        limits: bounds on the size, checked before any pixel is decoded.
        frame: of a file, from 0.

    Raises:
        MediaError: the file is missing, unreadable, empty, truncated, damaged, not an image, or
            over one of `limits`, or the image or array has a mode, dtype, shape or values that do
            not define a picture.
    """
    if is_array(source):
        return _from_array(as_picture(source), limits)
    if isinstance(source, Image.Image):
        name = str(getattr(source, "filename", "") or "the image")
        with _decoding(name, limits):
            check_pixels(name, *source.size, limits)
            return _to_rgb(source, name)
    with local_copy(source, limits) as copy:
        return _load_file(check_file(copy, limits), limits, frame)


def _load_file(path: str, limits: Limits, frame: int) -> Image.Image:
    with _decoding(path, limits), Image.open(path, formats=_available_formats(limits)) as image:
        check_pixels(path, *image.size, limits)
        if frame:
            image.seek(frame)
            check_pixels(path, *image.size, limits)
        return _to_rgb(image, path)


@dataclass(frozen=True)
class ImageFacts:
    """The header of an image file.

    Args:
        num_pages: frames of a format with pages; 1 for animations.
        dpi: horizontal pixels an inch; None if they are not stated.
    """

    num_pages: int
    dpi: float | None


def read_facts(source: str | Path, limits: Limits = Limits()) -> ImageFacts:  # noqa: B008 - frozen
    path = check_file(source, limits)
    with _decoding(path, limits), Image.open(path, formats=_available_formats(limits)) as image:
        check_pixels(path, *image.size, limits)
        num_pages = 1
        if image.format in _PAGED_FORMATS:
            num_pages = int(getattr(image, "n_frames", 1))
        return ImageFacts(num_pages, _stated_dpi(image.info.get("dpi")))


def _stated_dpi(stated: Any) -> float | None:
    try:
        return float(stated[0])
    except (TypeError, ValueError, IndexError, ZeroDivisionError):
        return None


def _available_formats(limits: Limits) -> list[str]:
    Image.init()
    names = _COMMON_FORMATS if limits.common_formats else _FORMATS
    return [name for name in names if name in Image.OPEN]


@contextmanager
def _decoding(name: str, limits: Limits) -> Iterator[None]:
    """Run Pillow under `limits` and without warnings, and turn its exceptions into `MediaError`."""
    with _PILLOW_LOCK, warnings.catch_warnings(), _pillow_settings(limits.max_pixels):
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            yield
        except (MemoryError, MediaError):
            raise
        except Exception as error:  # Pillow's plugins raise exceptions of any kind on damaged files
            raise _explain(name, error, limits) from error


@contextmanager
def _pillow_settings(max_pixels: int) -> Iterator[None]:
    """Set Pillow's global settings inside the block. Pillow compares the number of pixels with its
    limit on opening, and again for nested images, each time before it decodes."""
    previous_max_pixels = Image.MAX_IMAGE_PIXELS
    previous_load_truncated = ImageFile.LOAD_TRUNCATED_IMAGES
    Image.MAX_IMAGE_PIXELS = max_pixels
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = previous_max_pixels
        ImageFile.LOAD_TRUNCATED_IMAGES = previous_load_truncated


def _explain(name: str, error: Exception, limits: Limits) -> MediaError:
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        pixels = re.search(r"\d+", str(error))
        figure = f"it has {pixels.group()} pixels" if pixels else "it has too many pixels"
        return over_limit(name, figure, str(limits.max_pixels), "max_pixels")
    if isinstance(error, UnidentifiedImageError):
        content = guess_content(name)
        if content is not None:
            return refusal(name, f"{content}, not an image")
        return refusal(name, "it is no image that Pillow can read, or its start is damaged")
    return refusal(name, f"it is truncated or damaged ({error})")


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    image.load()
    picture = _to_eight_bits(_upright(image), name)
    try:
        if picture.mode in _ALPHA_MODES or "transparency" in picture.info:
            picture = _on_white(picture)
        picture = picture.convert("RGB")
    except ValueError as error:
        raise refusal(name, f"its mode {picture.mode} cannot be shown as RGB") from error
    # With the EXIF block in it, the image would be turned again when it is read again.
    picture.info.clear()
    return picture


def _on_white(picture: Image.Image) -> Image.Image:
    if picture.mode == "La":
        picture = picture.convert("LA")  # the only mode to which Pillow converts La
    white = Image.new("RGBA", picture.size, "white")
    return Image.alpha_composite(white, picture.convert("RGBA"))


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except MemoryError:
        raise
    except Exception:
        return image


def _to_eight_bits(image: Image.Image, name: str) -> Image.Image:
    """Scale deep grey to 8 bits. Pillow's own conversion clips every value above 255.

    Mode I holds 16 bits, as in older readings of PNG files, or the 8 bits that convert("I") leaves.
    Mode F holds 0 to 1 or 0 to 255.
    """
    if image.mode.startswith("I;16"):
        return Image.fromarray(_halve_depth(np.asarray(image)))
    if image.mode == "I":
        return _scale_grey(image, name, 255, 65535)
    if image.mode == "F":
        return _scale_grey(image, name, 1, 255)
    return image


def _scale_grey(image: Image.Image, name: str, narrow: int, wide: int) -> Image.Image:
    """Scale values of 0 to `narrow`, or else of 0 to `wide`, to 0 to 255."""
    values = np.asarray(image).astype(np.float64)
    minimum = float(values.min())
    maximum = float(values.max())
    if not (minimum >= 0 and maximum <= wide):  # also catches nan
        cause = (
            f"its pixels hold values from {minimum:g} to {maximum:g}, "
            f"where only 0 to {narrow} or 0 to {wide} would be brightness"
        )
        raise refusal(name, cause)
    uses_wide_range = maximum > narrow or image.format == "PNG"
    white = wide if uses_wide_range else narrow
    return Image.fromarray(np.rint(values * (255 / white)).astype(np.uint8))


def _halve_depth(values: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint16 of any shape and byte order -> the nearest uint8 of the same brightness."""
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _from_array(array: np.ndarray[Any, Any], limits: Limits) -> Image.Image:
    name = "the array"
    _check_array(array, name)
    height, width = array.shape[:2]
    check_pixels(name, width, height, limits)
    pixels = array if array.dtype == np.uint8 else _halve_depth(array)
    if pixels.shape[2:] == (1,):
        pixels = pixels.reshape(height, width)
    with _decoding(name, limits):
        return _to_rgb(Image.fromarray(np.ascontiguousarray(pixels)), name)


def _check_array(array: np.ndarray[Any, Any], name: str) -> None:
    """Raise `MediaError` if the shape or dtype of an array is not that of a picture."""
    is_grey = array.ndim == 2
    has_channels = array.ndim == 3 and array.shape[2] in (1, 3, 4)
    if array.size == 0 or not (is_grey or has_channels):
        raise refusal(
            name, f"its shape is {list(array.shape)}, but [H, W] or [H, W, 1 or 3 or 4] is wanted"
        )
    # Both byte orders are accepted.
    if array.dtype.kind != "u" or array.dtype.itemsize > 2:
        raise refusal(name, f"its dtype is {array.dtype}, but uint8 or uint16 is wanted")

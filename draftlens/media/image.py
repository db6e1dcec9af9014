"""A picture from disk or memory -> an upright RGB image."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageFile, UnidentifiedImageError

from draftlens.core.errors import MediaError
from draftlens.media.files import check_file, what_instead
from draftlens.media.limits import Limits, check_pixels, refusal, too_much

# Picture formats only: Pillow also answers to PostScript (which starts a program) and to the first
# bytes of MPEG films.
_FORMATS = [
    *("AVIF", "BMP", "DIB", "GIF", "ICNS", "ICO", "JPEG", "JPEG2000", "MPO", "PCX"),
    *("PNG", "PPM", "PSD", "QOI", "SGI", "TIFF", "WEBP"),
]
_WITH_ALPHA = {"LA", "La", "PA", "RGBA", "RGBa"}  # Pillow 11's own has_transparency_data forgets PA
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # EXIF orientation -> what makes it upright
_PILLOW = (
    threading.Lock()
)  # Pillow's limits and Python's warning filters are global: one decoder at a time


def load_image(
    source: str | Path | Image.Image | np.ndarray[Any, Any],
    *,
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> Image.Image:
    """Read a picture as an upright RGB image of its own; what was passed in is left as it is.

    The EXIF orientation is applied, transparency is laid on white, and 16-bit grey is scaled to 8.
    Of an animated file the first frame is read; of an image that is already open, the frame at
    which it stands.

    Args:
        source: a file, a Pillow image, or an array of uint8 or uint16 [H, W], [H, W, 1] (grey), [H,
            W, 3] (RGB) or [H, W, 4] (RGBA).
        limits: what is refused as too large, before any pixel is decoded.

    Raises:
        MediaError: the file is missing, unreadable, empty, truncated, damaged, not an image, or
            over one of `limits`, or an image or array of a kind that has no plain meaning as a
            picture.
    """
    if isinstance(source, np.ndarray):
        return _from_array(source, limits)
    if isinstance(source, Image.Image):
        name = str(getattr(source, "filename", "") or "the image")
        with _decoding(name, limits):
            check_pixels(name, *source.size, limits)
            return _to_rgb(source, name)
    path = check_file(source, limits)
    with _decoding(path, limits), Image.open(path, formats=_known_formats()) as image:
        check_pixels(path, *image.size, limits)
        return _to_rgb(image, path)


def _known_formats() -> list[str]:
    Image.init()  # Image.open fails with a KeyError on a format that this build of Pillow does not have
    return [name for name in _FORMATS if name in Image.OPEN]


@contextmanager
def _decoding(name: str, limits: Limits) -> Iterator[None]:
    """Run Pillow under `limits`, silently, and turn whatever it raises into one `MediaError`."""
    with _PILLOW, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
        # Pillow checks this on opening and again for pictures nested in others, each before it
        # decodes.
        Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = limits.max_pixels, False
        try:
            yield
        except (MemoryError, MediaError):
            raise
        except (
            Exception
        ) as error:  # on hostile files Pillow's plugins let any kind of exception through
            raise _explain(name, error, limits) from error
        finally:
            Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = before


def _explain(name: str, error: Exception, limits: Limits) -> MediaError:
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        pixels = re.search(r"\d+", str(error))
        figure = f"it has {pixels.group()} pixels" if pixels else "it has too many pixels"
        return too_much(name, figure, f"{limits.max_pixels}", "max_pixels")
    if isinstance(error, UnidentifiedImageError):
        instead = what_instead(name)
        return refusal(
            name,
            f"{instead}, not an image"
            if instead
            else "it is no image that Pillow knows, or its start is damaged",
        )
    return refusal(name, f"it is truncated or damaged ({error})")


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    image.load()
    turn = _TURNS.get(_orientation(image))
    picture = _eight_bit(image, name)
    try:
        if picture.mode in _WITH_ALPHA or "transparency" in picture.info:
            straight = (
                picture.convert("LA") if picture.mode == "La" else picture
            )  # La turns into nothing else
            white = Image.new("RGBA", picture.size, "white")
            picture = Image.alpha_composite(white, straight.convert("RGBA"))
        picture = picture.convert("RGB")
    except ValueError as error:
        raise refusal(name, f"its mode {picture.mode} cannot be shown as RGB") from error
    if turn is not None:
        picture = picture.transpose(turn)
    picture.info.clear()  # the EXIF block in it would have the next reader turn the picture again
    return picture


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except MemoryError:
        raise
    except Exception:  # a broken EXIF block is no reason to refuse sound pixels
        return 1


def _eight_bit(image: Image.Image, name: str) -> Image.Image:
    """Deep grey as 8-bit grey: Pillow's own conversion cuts off every value above 255.

    Mode I holds 16 bits, as PNG files long came, or the 8 bits that convert("I") leaves; mode F 0
    to 1 or 0 to 255.
    """
    if image.mode.startswith("I;16"):
        return Image.fromarray(_halve(np.asarray(image)))
    if image.mode not in ("I", "F"):
        return image
    values = np.asarray(image).astype(np.float64)
    least, most = float(values.min()), float(values.max())
    narrow, wide = (255, 65535) if image.mode == "I" else (1, 255)
    if not (least >= 0 and most <= wide):  # also catches nan
        meant = f"0 to {narrow} or 0 to {wide} would be brightness"
        raise refusal(
            name, f"its pixels hold values from {least:g} to {most:g}, where only {meant}"
        )
    full = wide if most > narrow or image.format == "PNG" else narrow
    return Image.fromarray(np.rint(values * (255 / full)).astype(np.uint8))


def _halve(values: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint16 of any shape and byte order -> the nearest uint8 of the same brightness."""
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _from_array(array: np.ndarray[Any, Any], limits: Limits) -> Image.Image:
    name = "the array"
    channels = array.shape[2] if array.ndim == 3 else 1
    if array.ndim not in (2, 3) or channels not in (1, 3, 4) or array.size == 0:
        raise refusal(
            name, f"its shape is {list(array.shape)}, but [H, W] or [H, W, 1 or 3 or 4] is wanted"
        )
    if (array.dtype.kind, array.dtype.itemsize) not in (("u", 1), ("u", 2)):  # in either byte order
        raise refusal(name, f"its dtype is {array.dtype}, but uint8 or uint16 is wanted")
    height, width = array.shape[:2]
    check_pixels(name, width, height, limits)
    pixels = _halve(array) if array.dtype != np.uint8 else array
    if channels == 1:
        pixels = pixels.reshape(height, width)
    with _decoding(name, limits):
        return _to_rgb(Image.fromarray(np.ascontiguousarray(pixels)), name)

"""load_image: every mode gives upright RGB, and every unusable file is refused in one sentence."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageFile

import draftlens.media
from draftlens.core.errors import MediaError
from draftlens.media import Limits, load_image

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def marked(mode: str = "RGB") -> Image.Image:
    """64x48: blue, with its top left quarter red."""
    image = Image.new("RGB", (64, 48), BLUE)
    image.paste(RED, (0, 0, 32, 24))
    return image.convert(mode)


def pixel(image: Image.Image, x: int, y: int) -> tuple[int, ...]:
    value = image.getpixel((x, y))
    assert isinstance(value, tuple)
    return value


def near(value: tuple[int, ...], wanted: tuple[int, ...], by: int) -> bool:
    return max(abs(a - b) for a, b in zip(value, wanted, strict=True)) <= by


def refused(source: Any, *words: str, **options: Any) -> str:
    """Check that loading fails with one sentence that contains `words`; returns the sentence."""
    with pytest.raises(MediaError) as caught:
        load_image(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    for word in (str(source),) if isinstance(source, str | Path) else ():
        assert word in message, message
    for word in words:
        assert word in message, message
    return message


# -- sound images --------------------------------------------------------------------


@pytest.mark.parametrize(
    "extension", ["png", "jpg", "webp", "bmp", "tiff", "gif", "avif", "ppm", "jp2", "qoi"]
)
def test_formats(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"photo.{extension}"
    marked().save(path)
    for source in (path, str(path)):
        image = load_image(source)
        assert (image.mode, image.size) == ("RGB", (64, 48))
        assert type(image) is Image.Image
        assert near(pixel(image, 5, 5), RED, 20)
        assert near(pixel(image, 60, 40), BLUE, 20)


def test_the_extension_does_not_matter(tmp_path: Path) -> None:
    marked().save(tmp_path / "photo.png")
    (tmp_path / "photo.png").rename(tmp_path / "photo.dat")
    assert pixel(load_image(tmp_path / "photo.dat"), 5, 5) == RED


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("extension", ["jpg", "png", "webp", "tiff"])
def test_exif_orientation(tmp_path: Path, orientation: int, extension: str) -> None:
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = marked().transpose(undo[orientation]) if orientation in undo else marked()
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    path = tmp_path / f"photo.{extension}"
    stored.save(path, exif=exif)
    image = load_image(path)
    assert image.size == (64, 48)
    assert near(pixel(image, 5, 5), RED, 20)
    assert near(pixel(image, 60, 5), BLUE, 20)
    assert near(pixel(image, 5, 40), BLUE, 20)
    second = load_image(image)  # it is not turned twice
    assert np.array_equal(np.asarray(second), np.asarray(image))


def test_a_broken_exif_block_is_ignored(tmp_path: Path) -> None:
    marked().save(
        tmp_path / "photo.jpg",
        exif=b"Exif\x00\x00MM\x00\x2a\x00\x00\x00\x08\x00\x05\x01\x12garbage",
    )
    assert load_image(tmp_path / "photo.jpg").size == (64, 48)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "RGBX", "P", "CMYK", "YCbCr", "HSV"])
def test_color_modes(mode: str) -> None:
    source = marked(mode)
    image = load_image(source)
    assert image.mode == "RGB"
    assert near(pixel(image, 5, 5), RED, 3)
    assert near(pixel(image, 60, 40), BLUE, 3)
    assert source.mode == mode


@pytest.mark.parametrize("mode", ["1", "L", "LA", "I", "F", "I;16", "I;16B"])
def test_grey_modes(mode: str) -> None:
    ramp = Image.fromarray(np.tile(np.linspace(0, 255, 64).astype(np.uint8), (48, 1)))
    if mode.startswith("I;16"):
        deep = (np.asarray(ramp).astype(np.uint16) * 257).astype(
            ">u2" if mode == "I;16B" else "<u2"
        )
        source = Image.frombytes(mode, (64, 48), deep.tobytes())
    else:
        source = ramp.convert(mode)
    image = np.asarray(load_image(source))
    expected = np.asarray(ramp.convert("1").convert("L") if mode == "1" else ramp)
    assert np.array_equal(image, np.repeat(expected[..., None], 3, axis=2))


def test_sixteen_bits_are_scaled_and_not_cut_off(tmp_path: Path) -> None:
    deep = np.tile(np.linspace(0, 65535, 64).astype(np.uint16), (48, 1))
    for name in ("deep.png", "deep.tiff"):
        Image.fromarray(deep).save(tmp_path / name)
        assert np.abs(np.asarray(load_image(tmp_path / name))[..., 0] - deep / 257).max() <= 0.5
    dark = np.full((48, 64), 200, np.uint16)  # a night shot: nearly black, however it is stored
    Image.fromarray(dark).save(tmp_path / "dark.png")
    assert np.asarray(load_image(tmp_path / "dark.png")).max() == 1


def test_floats_from_zero_to_one() -> None:
    ramp = np.tile(np.linspace(0, 1, 64, dtype=np.float32), (48, 1))
    assert np.abs(np.asarray(load_image(Image.fromarray(ramp)))[..., 0] - ramp * 255).max() <= 0.51


def half_clear(mode: str) -> Image.Image:
    """Left half fully clear, right half opaque."""
    image = Image.new("RGBA", (64, 48), (0, 0, 0, 255))
    image.paste((0, 0, 0, 0), (0, 0, 32, 48))
    if mode == "P":
        flat = Image.new("P", (64, 48), 1)
        flat.paste(0, (0, 0, 32, 48))
        flat.putpalette([10, 20, 30, 0, 0, 0])
        flat.info["transparency"] = 0
        return flat
    return image.convert("LA").convert("La") if mode == "La" else image.convert(mode)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P", "RGBa", "La"])
def test_transparency_lies_on_white(mode: str) -> None:
    image = load_image(half_clear(mode))
    assert pixel(image, 5, 5) == WHITE
    assert pixel(image, 60, 5) == (0, 0, 0)


@pytest.mark.parametrize("name", ["clear.png", "clear.gif", "clear.webp"])
def test_transparent_files(tmp_path: Path, name: str) -> None:
    half_clear("P" if name.endswith("gif") else "RGBA").save(tmp_path / name, lossless=True)
    image = load_image(tmp_path / name)
    assert pixel(image, 5, 5) == WHITE
    assert pixel(image, 60, 5) == (0, 0, 0)


def test_half_transparency_is_mixed() -> None:
    assert pixel(load_image(Image.new("RGBA", (4, 4), (255, 0, 0, 128))), 1, 1) == (255, 127, 127)


def test_a_palette_with_transparency_in_bytes(tmp_path: Path) -> None:
    """Pillow warns about such files when they are converted carelessly, and here warnings are
    errors."""
    image = marked("P")
    image.info["transparency"] = bytes([0] * 128 + [255] * 128)
    image.save(tmp_path / "palette.png")
    assert load_image(tmp_path / "palette.png").mode == "RGB"


@pytest.mark.parametrize("extension", ["gif", "png", "webp"])
def test_the_first_frame_of_an_animation(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"moving.{extension}"
    marked().save(
        path, save_all=True, append_images=[Image.new("RGB", (64, 48), WHITE)] * 3, lossless=True
    )
    assert near(pixel(load_image(path), 5, 5), RED, 3)


def test_an_open_image_is_left_as_it_is(tmp_path: Path) -> None:
    marked("RGBA").save(tmp_path / "photo.png")
    with Image.open(tmp_path / "photo.png") as source:
        image = load_image(source)
        assert source.mode == "RGBA"
        image.paste(WHITE, (0, 0, 64, 48))
        assert pixel(source, 5, 5) == (*RED, 255)
    rgb = marked()
    load_image(rgb).paste(WHITE, (0, 0, 64, 48))
    assert pixel(rgb, 5, 5) == RED


@pytest.mark.parametrize("shape", [(48, 64), (48, 64, 1), (48, 64, 3), (48, 64, 4)])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", ">u2"])
def test_arrays(shape: tuple[int, ...], dtype: str) -> None:
    bright = 255 if dtype == "uint8" else 65535
    array = np.zeros(shape, dtype)
    array[:, 32:] = bright
    if shape[-1] == 4:
        array[..., 3] = bright
    image = load_image(array)
    assert (image.mode, image.size) == ("RGB", (64, 48))
    assert (pixel(image, 5, 5), pixel(image, 60, 5)) == ((0, 0, 0), WHITE)
    turned = load_image(array.swapaxes(0, 1))  # not contiguous
    assert turned.size == (48, 64)


def test_an_array_is_not_shared() -> None:
    array = np.zeros((4, 4, 3), np.uint8)
    image = load_image(array)
    array[:] = 255
    assert pixel(image, 0, 0) == (0, 0, 0)


def test_pillows_own_settings_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # draftlens has its own limit
    marked().save(tmp_path / "photo.png")
    assert load_image(tmp_path / "photo.png").size == (64, 48)
    refused(tmp_path / "missing.png")
    assert (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES) == (100, True)


# -- refusals ------------------------------------------------------------------------


def test_nothing_there(tmp_path: Path) -> None:
    refused(tmp_path / "missing.png", "no such file")
    refused(tmp_path, "folder")
    (tmp_path / "empty.png").touch()
    refused(tmp_path / "empty.png", "empty", "0 bytes")


def test_no_permission(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    marked().save(tmp_path / "secret.png")
    (tmp_path / "secret.png").chmod(0)
    request.getfixturevalue("as_stranger")
    refused(tmp_path / "secret.png", "permission")


def test_not_an_image(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    for content, word in [
        (b"hello " * 100, "text"),
        (b"%PDF-1.7\n" + bytes(100), "PDF"),
        (b"\0\0\0\x18ftypheic" + bytes(100), "HEIC"),
        (b"\0\0\0\x18ftypisom" + bytes(100), "video"),
        (b"\x1aE\xdf\xa3" + bytes(100), "video"),
        (
            b"\0\0\1\xba" + bytes(100),
            "no image",
        ),  # Pillow alone would take an MPEG film for a picture
        (
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
            "text",
        ),  # and start another program for this
        (np.random.default_rng(0).bytes(5000), "no image"),
    ]:
        path.write_bytes(content)
        refused(path, word)


@pytest.mark.parametrize(
    "extension", ["png", "jpg", "webp", "bmp", "tiff", "gif", "avif", "ppm", "jp2", "qoi"]
)
@pytest.mark.parametrize("share", [0.01, 0.5, 0.9])
def test_truncated(
    tmp_path: Path, extension: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ImageFile, "LOAD_TRUNCATED_IMAGES", True
    )  # the caller's setting must not hide it
    noise = np.random.default_rng(0).integers(0, 255, (200, 300, 3), np.uint8)
    path = tmp_path / f"photo.{extension}"
    Image.fromarray(noise).save(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    refused(path, "damaged")


@pytest.mark.parametrize("extension", ["png", "jpg", "webp", "gif", "tiff", "bmp"])
def test_bit_rot_raises_nothing_else(tmp_path: Path, extension: str) -> None:
    """Random damage either leaves a picture or is refused; no other exception and no warning is
    raised."""
    path = tmp_path / f"photo.{extension}"
    marked("P" if extension == "gif" else "RGB").save(path)
    sound = path.read_bytes()
    rng = np.random.default_rng(1)
    for _ in range(60):
        data = bytearray(sound)
        for at in rng.integers(0, min(len(data), 400), 4):
            data[at] = rng.integers(256)
        path.write_bytes(data)
        with contextlib.suppress(MediaError):
            assert load_image(path, limits=Limits(max_pixels=1_000_000)).mode == "RGB"


def png_of(width: int, height: int) -> bytes:
    """A PNG with width x height pixels according to its header, but with almost no data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(10)))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("width", "height"), [(11_000, 10_000), (15_000, 10_000), (60_000, 60_000)]
)
def test_an_image_bomb_is_stopped_before_its_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int, height: int
) -> None:
    loaded: list[int] = []
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: loaded.append(1))
    path = tmp_path / "bomb.png"
    path.write_bytes(png_of(width, height))
    refused(path, str(width * height), "over the limit of 100000000", "max_pixels")
    assert not loaded


def test_a_bomb_that_the_caller_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with Image.open(io.BytesIO(png_of(60_000, 60_000))) as bomb:
        refused(bomb, "the image", "60000x60000", "max_pixels")


def test_a_higher_limit_lets_more_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marked().save(tmp_path / "photo.png")
    monkeypatch.setattr(
        Image, "MAX_IMAGE_PIXELS", 1000
    )  # 3072 pixels are three times as much: Pillow would refuse
    refused(tmp_path / "photo.png", "max_pixels", limits=Limits(max_pixels=3071))
    assert load_image(tmp_path / "photo.png", limits=Limits(max_pixels=3072)).size == (64, 48)


@pytest.mark.parametrize(
    ("size", "limits", "option"),
    [
        ((300, 2), Limits(max_side=299), "max_side"),
        ((2, 300), Limits(max_side=299), "max_side"),
        ((300, 2), Limits(max_ratio=149), "max_ratio"),
        ((2, 300), Limits(max_ratio=149), "max_ratio"),
        ((2, 10_000_000), Limits(), "max_side"),
    ],
)
def test_long_and_narrow(
    tmp_path: Path, size: tuple[int, int], limits: Limits, option: str
) -> None:
    path = tmp_path / "long.png"
    Image.new("L", size).save(path)
    with pytest.raises(MediaError, match=option):
        load_image(path, limits=limits)
    if max(size) == 300:
        wider = Limits(max_side=300, max_ratio=150)
        assert load_image(path, limits=wider).size == size


def test_too_many_bytes(tmp_path: Path) -> None:
    marked().save(tmp_path / "photo.bmp")
    refused(
        tmp_path / "photo.bmp", "9.1 KiB", "1000 bytes", "max_bytes", limits=Limits(max_bytes=1000)
    )


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((3, 48, 64), np.uint8), "[3, 48, 64]"),
        (np.zeros((1, 48, 64, 3), np.uint8), "[1, 48, 64, 3]"),
        (np.zeros((0, 64, 3), np.uint8), "[0, 64, 3]"),
        (np.zeros((64,), np.uint8), "[64]"),
        (np.zeros((48, 64, 2), np.uint8), "[48, 64, 2]"),
        (np.zeros((48, 64, 3), np.float32), "float32"),
        (np.zeros((48, 64), bool), "bool"),
    ],
)
def test_arrays_that_are_no_picture(array: np.ndarray, words: str) -> None:
    refused(array, "the array", words, "wanted")


def test_a_large_array() -> None:
    refused(np.zeros((48, 64), np.uint8), "64x48", "max_pixels", limits=Limits(max_pixels=100))


@pytest.mark.parametrize("values", [(-1, 5), (0, 70_000)])
def test_whole_numbers_without_a_meaning(values: tuple[int, int]) -> None:
    refused(
        Image.fromarray(np.tile(np.array(values, np.int32), (4, 4))),
        "the image",
        f"{values[0]:g} to {values[1]:g}",
    )


@pytest.mark.parametrize("value", [-0.5, 300.0, float("nan")])
def test_floats_without_a_meaning(value: float) -> None:
    refused(Image.fromarray(np.full((4, 4), value, np.float32)), "the image", "brightness")


def test_a_mode_without_a_way_to_rgb(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(self: Image.Image, mode: str) -> Image.Image:
        raise ValueError(
            f"conversion from {self.mode} to {mode} not supported"
        )  # the message of older versions of Pillow

    monkeypatch.setattr(Image.Image, "convert", convert)
    refused(Image.new("LAB", (4, 4)), "the image", "LAB", "RGB")


def test_a_closed_image(tmp_path: Path) -> None:
    marked().save(tmp_path / "photo.png")
    image = Image.open(tmp_path / "photo.png")
    image.close()
    refused(image, "photo.png")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open files are counted in /proc")
def test_files_are_closed(tmp_path: Path) -> None:
    sound, broken = tmp_path / "sound.png", tmp_path / "broken.png"
    marked().save(sound)
    broken.write_bytes(sound.read_bytes()[:-40])
    load_image(sound)
    refused(broken)
    links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert str(sound) not in links
    assert str(broken) not in links


def test_ctrl_c_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Any) -> None:
        raise KeyboardInterrupt

    marked().save(tmp_path / "photo.png")
    with monkeypatch.context() as patch:
        patch.setattr(ImageFile.ImageFile, "load", interrupt)
        with pytest.raises(KeyboardInterrupt):
            load_image(tmp_path / "photo.png")
    assert load_image(tmp_path / "photo.png").size == (64, 48)  # the lock is released


def test_the_public_names() -> None:
    assert draftlens.media.__all__ == sorted(draftlens.media.__all__)
    assert all(hasattr(draftlens.media, name) for name in draftlens.media.__all__)

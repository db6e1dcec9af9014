"""Files and their pages, and the sentences with which they are refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pdfs
import pytest
from PIL import Image

from draftlens import ConfigError, MediaError
from draftlens.documents.reading import PageNumbers, find_files, open_document
from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.page import Page
from draftlens.media import Limits


def words(page: Page) -> list[str]:
    layer = page.text_layer()
    assert layer is not None
    return [piece.text for piece in layer.pieces]


def test_words_of_a_page(tmp_path: Path) -> None:
    document = open_document(pdfs.write(tmp_path / "a.pdf", [pdfs.columns]))
    page = document.page(1)
    assert page.box == Box(0, 0, pdfs.WIDTH, pdfs.HEIGHT)
    found = words(page)
    assert found[:4] == ["Of", "mills", "and", "bridges"]
    assert "vil\x02" in found  # pdfium's mark of a word that is broken at the end of a line
    document.close()


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_boxes_follow_the_rotation_of_a_page(tmp_path: Path, degrees: int) -> None:
    """Where words are, there is ink, and elsewhere there is none."""
    document = open_document(pdfs.write(tmp_path / "r.pdf", [pdfs.rotated(degrees)]))
    page = document.page(1)
    sideways = degrees % 180 == 90
    assert (page.box.width > page.box.height) == sideways
    ink = np.asarray(page.picture(72).convert("L")) < 128
    inside = np.zeros_like(ink)
    layer = page.text_layer()
    assert layer is not None
    for piece in layer.pieces:
        box = piece.box.padded(1).within(page.box)
        part = (
            slice(int(box.top), int(box.bottom) + 1),
            slice(int(box.left), int(box.right) + 1),
        )
        assert ink[part].any(), piece
        inside[part] = True
    assert ink[inside].sum() == ink.sum()
    document.close()


def garbage(path: Path) -> Path:
    path.write_bytes(b"%PDF-1.7\nno table of contents, no end")
    return path


def bomb(path: Path) -> Path:
    Image.new("1", (3000, 3000)).save(path.with_suffix(".png"))
    return path.with_suffix(".png")


def text(path: Path) -> Path:
    path.write_text("a letter")
    return path


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "password": (lambda p: pdfs.encrypted(p, "secret"), "it needs a password"),
    "damaged": (garbage, "damaged, or no PDF"),
    "no pages": (pdfs.without_pages, "has no pages|no PDF"),
    "bomb": (bomb, "over the limit of 1000000"),
    "text": (lambda p: text(p.with_suffix(".txt")), "it is text, not an image"),
    "empty": (lambda p: p, "there is no such file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_files_are_refused_in_one_sentence_with_their_name(tmp_path: Path, name: str) -> None:
    make, cause = REFUSED[name]
    path = make(tmp_path / "bad.pdf")
    with pytest.raises(MediaError, match=cause) as refused:
        open_document(path, limits=Limits(max_pixels=1_000_000))
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_passwords(tmp_path: Path) -> None:
    path = pdfs.encrypted(tmp_path / "e.pdf", "secret")
    with pytest.raises(MediaError, match="the password is wrong"):
        open_document(path, "guess")
    document = open_document(path, "secret")
    assert words(document.page(1))[0] == "Of"
    document.close()


def test_a_file_that_states_more_pages_than_it_has(tmp_path: Path) -> None:
    document = open_document(pdfs.stating(tmp_path / "many.pdf", 100_000))
    assert document.page(1).box.width == 200
    with pytest.raises(MediaError, match=r"page 2: .* missing or damaged"):
        document.page(2)
    document.close()


def test_pixels_are_counted_before_a_page_is_rendered(tmp_path: Path) -> None:
    size = (14_000.0, 14_000.0)
    document = open_document(pdfs.write(tmp_path / "huge.pdf", [pdfs.blank], size))
    with pytest.raises(MediaError, match=r"page 1: it has 29167x29167 = .* over the limit"):
        document.page(1).picture(150)
    assert document.page(1).picture(10).size == (1945, 1945)
    document.close()


def test_frames_of_a_tiff_are_pages_and_resolutions_are_sizes(tmp_path: Path) -> None:
    pages = [Image.new("RGB", (300, 150), color) for color in ("white", "red")]
    path = tmp_path / "scan.tif"
    pages[0].save(path, save_all=True, append_images=pages[1:], dpi=(300, 300))
    document = open_document(path)
    assert document.num_pages == 2
    second = document.page(2)
    assert second.box.to_list() == [0, 0, 72, 36]
    assert second.picture(150).size == (150, 75)
    assert second.picture(600).size == (300, 150)  # scans are not enlarged
    assert second.picture(150).getpixel((0, 0)) == (255, 0, 0)
    assert second.text_layer() is None
    with pytest.raises(MediaError, match="the file has 2 pages"):
        document.page(3)
    document.close()


@pytest.mark.parametrize(
    ("text", "pages"),
    [(None, [1, 2, 3, 4]), ("2", [2]), ("3,1-2", [1, 2, 3]), ("3-", [3, 4]), ("2-9", [2, 3, 4])],
)
def test_page_numbers(text: str | None, pages: list[int]) -> None:
    assert PageNumbers.parse(text).of(4) == pages


@pytest.mark.parametrize("text", ["0", "3-1", "a", "", "1,,2", "-3", "1.5"])
def test_page_numbers_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="pages are numbers from 1"):
        PageNumbers.parse(text)


def test_folders_are_searched(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    for name in ("b.PDF", "below/a.png", "notes.txt"):
        (tmp_path / name).touch()
    assert find_files([tmp_path]) == [tmp_path / "b.PDF", tmp_path / "below" / "a.png"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(MediaError, match="the folder holds no document"):
        find_files([tmp_path / "empty"])


def test_fonts_of_words_that_are_shown(tmp_path: Path) -> None:
    """Bold and fixed ones by their names, sizes on the page; text over scans has none."""

    def draw(canvas: pdfs.Canvas) -> None:
        for place, name in enumerate(("Helvetica", "Helvetica-Bold", "Courier")):
            canvas.setFont(name, 10)
            canvas.drawString(30, 300 - 30 * place, name)
        canvas.scale(2, 2)
        canvas.drawString(20, 60, "twice")
        hidden = canvas.beginText(20, 30)
        hidden.setTextRenderMode(3)
        hidden.textOut("hidden")
        canvas.drawText(hidden)

    with closing(open_document(pdfs.write(tmp_path / "a.pdf", [draw]))) as document:
        layer = document.page(1).text_layer()
    assert layer is not None
    fonts = {piece.text: (round(piece.size), piece.bold, piece.fixed) for piece in layer.pieces}
    assert fonts == {
        "Helvetica": (10, False, False),
        "Helvetica-Bold": (10, True, False),
        "Courier": (10, False, True),
        "twice": (20, False, True),
        "hidden": (0, False, False),
    }

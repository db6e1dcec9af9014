"""PDF files that would take for ever or fill the memory, and damaged ones that look blank."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pdfs
import pytest

from draftlens import MediaError
from draftlens.documents.drafting import DraftedPage, drafted_pages
from draftlens.documents.reading import open_document
from draftlens.documents.reading.page import Page
from draftlens.documents.settings import ParseSettings
from draftlens.media import Limits
from draftlens.media.reader import MediaReader


def drafted(page: Page) -> DraftedPage:
    """What a pipeline asks of a page."""
    picture = page.picture(72)
    page.text_layer()
    return DraftedPage(page.source, page.number, page.box, picture)


def test_bad_files_do_not_stop_a_folder(tmp_path: Path) -> None:
    files = [
        pdfs.recursive(tmp_path / "recursive.pdf"),
        pdfs.nested(tmp_path / "nested.pdf", 8, 10),
        pdfs.printed(tmp_path / "good.pdf"),
    ]
    limits = Limits(max_page_s=2.0, max_page_bytes=100 * 2**20)
    pages = list(drafted_pages(files, drafted, ParseSettings(), limits))
    assert [Path(page.source) for page in pages] == files
    *bad, good = pages
    for page in bad:
        assert page.error is not None
        assert f"cannot read {page.source}" in page.error
        assert "did not end within 2 seconds" in page.error or "more than 100.0 MiB" in page.error
    assert good.error is None
    assert not good.is_blank


def test_a_file_whose_pages_never_end_is_given_up(tmp_path: Path) -> None:
    path = pdfs.recursive(tmp_path / "recursive.pdf", 6)
    reader = MediaReader(30.0)
    document = open_document(path, reader=reader)
    reader.seconds = 0.3
    for number in (1, 2, 3):
        with pytest.raises(MediaError, match=f"page {number}: its decoder did not end within 0.3"):
            document.page(number)
    for number in (4, 5):
        with pytest.raises(MediaError, match=f"page {number}: the file is given up after 3"):
            document.page(number)
    reader.close()


def test_a_page_that_needs_too_much_memory_is_refused(tmp_path: Path) -> None:
    path = pdfs.flate_bomb(tmp_path / "bomb.pdf", 40 * 2**20)
    document = open_document(path, limits=Limits(max_page_s=120.0, max_page_bytes=100 * 2**20))
    with pytest.raises(MediaError, match=r"page 1: its decoder needs more than 100.0 MiB of mem"):
        document.page(1).picture(72)
    document.close()


def test_a_page_with_a_huge_picture_is_not_called_blank(tmp_path: Path) -> None:
    path = pdfs.huge_picture(tmp_path / "huge.pdf", 30_000)
    (page,) = drafted_pages([path], drafted, ParseSettings(), Limits())
    assert page.error is not None
    assert "page 1: a picture on it has 30000x30000 = 900000000 pixels, over the" in page.error
    path = pdfs.huge_picture(tmp_path / "white.pdf", 300)
    (page,) = drafted_pages([path], drafted, ParseSettings(), Limits())
    assert page.is_blank


def corrupt(content: bytes) -> bytes:
    """The compressed content of the page does not begin as it should."""
    return content.replace(b"stream\nx", b"stream\n\0", 1)


def bent(content: bytes) -> bytes:
    """One bit of the compressed content is another."""
    place = content.index(b"stream\n") + 20
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "the content does not decompress": corrupt,
    "the content is another": bent,
    "an unknown filter": lambda content: content.replace(b"/FlateDecode", b"/Flat3Decod3", 1),
    "no stream": lambda content: content.replace(b"/Contents 4 0 R", b"/Contents 5 0 R"),
    "elsewhere": lambda content: content.replace(
        b"%010d" % content.index(b"4 0 obj"), b"%010d" % 9
    ),
    "no table": lambda content: corrupt(content).replace(b"startxref\n", b"startxref\n9"),
}


@pytest.fixture(scope="module")
def reader() -> MediaReader:
    return MediaReader(30.0)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_page_is_not_blank(tmp_path: Path, reader: MediaReader, name: str) -> None:
    path = pdfs.printed(tmp_path / "a.pdf")
    path.write_bytes(DAMAGES[name](path.read_bytes()))
    document = open_document(path, reader=reader)
    with pytest.raises(MediaError, match=r"a\.pdf, page 1: nothing is on it, and it is damaged"):
        document.page(1).picture(72)


def test_a_picture_that_cannot_be_decoded_is_not_blank(tmp_path: Path, reader: MediaReader) -> None:
    entries = b"/Subtype/Image/Width 9/Height 9/ColorSpace/DeviceRGB/BitsPerComponent 8"
    picture = pdfs.stream(b"no JPEG", entries).replace(b"/FlateDecode", b"/DCTDecode")
    content = pdfs.stream(b"q 90 0 0 90 0 0 cm /X Do Q")
    page = pdfs.page(b"/XObject<</X 5 0 R>>")
    path = pdfs.of_objects(
        tmp_path / "a.pdf", [pdfs.CATALOG, pdfs.ONE_PAGE, page, content, picture]
    )
    with pytest.raises(MediaError, match="a picture on it cannot be decoded"):
        open_document(path, reader=reader).page(1).picture(72)


@pytest.mark.parametrize("content", [b"", b"q Q", b"BT /F 12 Tf ET", b"1 g 0 0 50 50 re f"])
def test_a_blank_page_stays_blank(tmp_path: Path, reader: MediaReader, content: bytes) -> None:
    objects = [pdfs.CATALOG, pdfs.ONE_PAGE, pdfs.page(), pdfs.stream(content)]
    path = pdfs.of_objects(tmp_path / "a.pdf", objects)
    picture = open_document(path, reader=reader).page(1).picture(72)
    assert picture.convert("L").getextrema() == (255, 255)


def test_a_file_without_pages_is_refused_in_words(tmp_path: Path) -> None:
    pages = b"<</Type/Pages/Kids[]/Count 0>>"
    path = pdfs.of_objects(tmp_path / "zero_pages.pdf", [pdfs.CATALOG, pages])
    with pytest.raises(MediaError, match="has no pages") as refused:
        open_document(path)
    assert "Success" not in str(refused.value)


def test_names_that_are_not_utf_8_are_read(tmp_path: Path, reader: MediaReader) -> None:
    good = pdfs.printed(tmp_path / os.fsdecode(b"caf\xe9.pdf"))
    assert not drafted(open_document(good, reader=reader).page(1)).is_blank
    bad = tmp_path / os.fsdecode(b"bad caf\xe9.pdf")
    bad.write_bytes(corrupt(good.read_bytes()))
    with pytest.raises(MediaError, match="nothing is on it, and it is damaged"):
        open_document(bad, reader=reader).page(1).picture(72)


def test_a_closed_document_says_so(tmp_path: Path) -> None:
    document = open_document(pdfs.printed(tmp_path / "a.pdf"))
    page = document.page(1)
    document.close()
    with pytest.raises(MediaError, match="the document was closed"):
        page.picture(72)

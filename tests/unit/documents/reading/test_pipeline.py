"""Readers, layouts, and the pipeline that puts them together."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pdfs
import pytest
from PIL import Image

from draftlens import ConfigError, MediaError, ParseSettings
from draftlens.documents.drafting import standard_pipeline
from draftlens.documents.reading import StandardPipeline, open_document
from draftlens.documents.reading.assign import owners
from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.layouts import LAYOUTS, make_layout
from draftlens.documents.reading.page import Page, Piece, Reading, Region, TextLayer
from draftlens.documents.reading.pictures import PicturePage
from draftlens.documents.reading.pipeline import parse_readers
from draftlens.documents.reading.readers import (
    READERS,
    lines_of_rapidocr,
    make_reader,
)
from draftlens.documents.reading.tesseract import words_of_tesseract
from draftlens.documents.reading.trust import collapsed, disagreement, fault_of

HEAD = "level\tblock_num\tpar_num\tline_num\tleft\ttop\twidth\theight\tconf\ttext\n"


class FakePage:
    """A page whose text layer is given."""

    source = "fake.pdf"
    number = 1
    box = Box(0, 0, 200, 200)

    def __init__(self, *pieces: Piece, unreadable: int = 0) -> None:
        count = sum(len(piece.text) for piece in pieces)
        self.layer = TextLayer(pieces, count, unreadable)

    def picture(self, dpi: float) -> Image.Image:
        """A white page."""
        return Image.new("RGB", (100, 100), "white")

    def text_layer(self) -> TextLayer:
        """What was given."""
        return self.layer


class FakeOcr:
    """Reads one word, and counts how often."""

    calls = 0

    def missing(self) -> None:
        """Nothing."""

    def read(self, page: Page) -> Reading:
        """One word at the top left."""
        self.calls += 1
        return Reading("fake", (Piece("seen", Box(0, 0, 30, 10), 0),))


class FakeLayout:
    """Sees one region."""

    sees = True

    def __init__(self, box: Box, kind: str = "text") -> None:
        self.box = box
        self.kind = kind

    def missing(self) -> None:
        """Nothing."""

    def find(self, page: Page, pieces: Sequence[Piece]) -> list[Region]:
        """The region."""
        return [Region(self.box, self.kind)]


def word(text: str, left: float = 0, top: float = 0) -> Piece:
    return Piece(text, Box(left, top, left + 30, top + 10), 0)


def pipeline(ocr: FakeOcr | None, layout: object = "blocks") -> StandardPipeline:
    """The automatic one with another reader of pictures."""
    made = StandardPipeline("auto", layout)
    made._ocr = ocr
    return made


@pytest.mark.parametrize(
    ("page", "source"),
    [
        (FakePage(word("said")), "text-layer"),
        (FakePage(), "fake"),
        (FakePage(word("\ue001\ue002"), unreadable=2), "fake"),
        (FakePage(word("beside", left=500)), "fake"),
    ],
    ids=["good", "no characters", "no letters", "beside the page"],
)
def test_a_text_layer_is_read_unless_it_seems_to_lie(page: FakePage, source: str) -> None:
    (region, *_) = pipeline(FakeOcr()).read(page)
    assert region.texts[0].source == source


def test_a_text_layer_must_have_characters_where_text_is_seen() -> None:
    ocr = FakeOcr()
    page = FakePage(word("head"))
    seen = pipeline(ocr, FakeLayout(Box(0, 50, 200, 200))).read(page)
    assert ocr.calls == 1
    assert any(text.source == "fake" for region in seen for text in region.texts)
    pipeline(ocr, FakeLayout(Box(0, 0, 200, 50))).read(page)
    assert ocr.calls == 1
    assert pipeline(None, FakeLayout(Box(0, 50, 200, 200))).read(page)  # what else is there?


def test_drafts_that_were_of_no_use_are_made_of_the_picture_next_time() -> None:
    ocr = FakeOcr()
    made = pipeline(ocr)
    page = FakePage(word("said"))
    made.observe(page.source, 0.5, 500)
    made.observe("other.pdf", 0.0, 500)
    made.observe(page.source, 0.0, 5)
    made.read(page)
    assert ocr.calls == 0
    made.observe(page.source, 0.01, 500)
    made.read(page)
    assert ocr.calls == 1
    made.observe(page.source, 0.01, 500)  # pictures have not helped either
    made.read(page)
    assert ocr.calls == 1
    assert not collapsed(0.05, 20)


def test_words_outside_of_all_regions_are_regions_of_their_own() -> None:
    page = FakePage(word("in", 0, 0), Piece("out", Box(0, 150, 30, 160), 1, block=1))
    regions = pipeline(None, FakeLayout(Box(0, 0, 200, 50))).read(page)
    assert [[text.text for text in region.texts] for region in regions] == [["in"], ["out"]]


def test_owners_against_every_region_of_every_word() -> None:
    rng = random.Random(3)

    def box(size: int) -> Box:
        left, top = rng.randrange(100), rng.randrange(100)
        return Box(left, top, left + rng.randrange(1, size), top + rng.randrange(1, size))

    regions = [Region(box(60), "text") for _ in range(12)]
    pieces = [Piece("w", box(10), 0) for _ in range(60)]
    for piece, owner in zip(pieces, owners(pieces, regions), strict=True):
        holding = [r for r in regions if r.box.holds(piece.box.middle)]
        if owner is None:
            assert not holding
        else:
            assert regions[owner].box.area == min(r.box.area for r in holding)


def test_two_columns_of_a_real_page(tmp_path: Path) -> None:
    document = open_document(pdfs.write(tmp_path / "a.pdf", [pdfs.columns]))
    regions = StandardPipeline("text-layer", "blocks").read(document.page(1))
    assert [region.kind for region in regions] == ["title", "text", "text"]
    assert [region.texts[0].lines[0] for region in regions] == [
        "Of mills and bridges",
        pdfs.LEFT[0],
        pdfs.RIGHT[0],
    ]
    assert [region.order for region in regions] == [0, 1, 2]
    assert StandardPipeline("none").read(document.page(1))[0].texts == ()
    document.close()


def test_the_table_of_tesseract() -> None:
    rows = [
        "1\t0\t0\t0\t0\t0\t200\t100\t-1\t",
        "5\t1\t1\t1\t20\t10\t40\t20\t96.5\tOf",
        '5\t1\t1\t1\t70\t10\t40\t20\t80\t"mills"',
        "5\t1\t2\t1\t20\t50\t40\t20\t-1\t ",
        "5\t1\t2\t1\t20\t50\t40\t20\t50\tnext",
    ]
    pieces = list(words_of_tesseract(HEAD + "\n".join(rows) + "\n", 0.5))
    assert [piece.text for piece in pieces] == ["Of", '"mills"', "next"]
    assert pieces[0].box == Box(10, 5, 30, 15)
    assert [piece.line for piece in pieces] == [0, 0, 1]
    assert pieces[0].block != pieces[2].block
    assert pieces[0].score == 0.965


def test_lines_of_rapidocr_are_read_by_columns() -> None:
    def corners(left: float, top: float) -> list[list[float]]:
        right, bottom = left + 80, top + 20
        return [[left, top], [right, top], [right, bottom], [left, bottom]]

    found = lines_of_rapidocr(
        [corners(200, 0), corners(0, 0), corners(200, 30), corners(0, 30)],
        ["c", "a", "d", "b"],
        [0.9, 0.8, 0.7, 0.6],
        0.5,
    )
    assert [piece.text for piece in found] == ["a", "b", "c", "d"]
    assert found[2].box == Box(100, 0, 140, 10)


def test_what_has_to_be_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="needs the program tesseract"):
        StandardPipeline("tesseract")
    with pytest.raises(ConfigError, match="unknown reader 'eyes'; known: rapidocr, tesseract"):
        make_reader("eyes")
    with pytest.raises(ConfigError, match="unknown reader 'eyes'; known: auto, none"):
        parse_readers("auto,eyes".replace("auto,", ""))
    assert parse_readers("text-layer, tesseract") == ("text-layer", "tesseract")
    assert [type(make_reader(name)).__name__ for name in READERS]
    assert [type(make_layout(name)).__name__ for name in LAYOUTS]


TESSERACT = """#!/bin/sh
case "$*" in
--list-langs) printf 'List of available languages (4):\\nchi_tra\\ndeu\\neng\\nosd\\n'; exit ;;
*osd) printf '%b' "$SCRIPT"; test -n "$SCRIPT"; exit ;;
esac
printf 'level\\tblock_num\\tpar_num\\tline_num\\tleft\\ttop\\twidth\\theight\\tconf\\ttext\\n'
printf '5\\t1\\t1\\t1\\t9\\t9\\t40\\t9\\t90\\t%s\\n' "$6"
"""
"""Reads the names of its languages on each page, which is in the script of a variable."""


def test_the_languages_of_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "tesseract"
    program.write_text(TESSERACT)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SCRIPT", "")
    Image.new("RGB", (200, 100), "gray").save(tmp_path / "a.png")
    with closing(open_document(str(tmp_path / "a.png"))) as document:
        for readers in ("auto", "tesseract", "text-layer,tesseract"):
            for languages, read in ((None, "eng"), ("fra+eng", "fra+eng")):
                settings = ParseSettings(drafter=readers, layout="blocks", ocr_languages=languages)
                made = standard_pipeline(settings)
                assert made is not None
                assert made.read(document.page(1))[0].texts[0].text == read
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="'tesseract' needs the program tesseract"):
        standard_pipeline(ParseSettings(ocr_languages="fra"))


@pytest.mark.parametrize(
    ("drafter", "languages", "refusal"),
    [
        ("text-layer", "fra", "needs the reader tesseract"),
        (("text-layer", "rapidocr"), "fra", "needs the reader tesseract"),
        ({"name": "tesseract"}, "fra", "needs the reader tesseract"),
        (make_reader("tesseract"), "fra", "needs the reader tesseract"),
        ("auto", "", "names of tesseract's data"),
        ("auto", "fra,eng", "names of tesseract's data"),
        ("auto", "--list-langs", "names of tesseract's data"),
    ],
)
def test_languages_that_are_refused(drafter: Any, languages: str, refusal: str) -> None:
    with pytest.raises(ConfigError, match=refusal):
        ParseSettings(drafter=drafter, ocr_languages=languages)


def test_faults_name_their_cause() -> None:
    whole = Box(0, 0, 100, 100)
    empty = Reading("text-layer", ())
    assert fault_of(empty, [], whole) == "the page has no characters"
    good = Reading("text-layer", (word("a"),))
    assert fault_of(good, [], whole) is None
    assert fault_of(good, [Region(Box(0, 40, 90, 90), "figure")], whole) is None
    fault = fault_of(good, [Region(Box(0, 40, 90, 90), "text")], whole)
    assert fault == "it has no characters in 100% of what looks like text"


@pytest.mark.parametrize(
    ("script", "read"),
    [
        ("Script: Latin\\nScript confidence: 9.5\\n", "eng+deu"),
        ("Script: Han\\nScript confidence: 9.5\\n", "chi_tra"),
        ("Script: Han\\nScript confidence: 0.9\\n", "eng"),
        ("Script: Runic\\nScript confidence: 9.5\\n", "eng"),
        ("", "eng"),
    ],
)
def test_languages_follow_the_script_of_the_page(
    script: str, read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "tesseract"
    program.write_text(TESSERACT)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SCRIPT", script)
    reader = make_reader("tesseract")
    page = PicturePage("a.png", 1, Image.new("RGB", (200, 100), "gray"))
    assert reader.read(page).pieces[0].text == read
    monkeypatch.setenv("SCRIPT", "Script: Cyrillic\\nScript confidence: 9.5\\n")
    assert reader.read(page).pieces[0].text == read  # as the page before it
    other = PicturePage("b.png", 3, Image.new("RGB", (200, 100), "gray"))
    said = "b.png, page 3 is in Cyrillic script, of which .* apt install tesseract-ocr-rus"
    with pytest.raises(MediaError, match=said):
        reader.read(other)
    named = make_reader({"name": "tesseract", "languages": "fra"})
    assert named.read(other).pieces[0].text == "fra"


@pytest.mark.skipif(shutil.which("tesseract") is None, reason="tesseract is not installed")
def test_tesseract_reads_a_picture(tmp_path: Path) -> None:
    document = open_document(pdfs.write(tmp_path / "a.pdf", [pdfs.columns]))
    reading = make_reader("tesseract").read(document.page(1))
    layer = document.page(1).text_layer()
    assert layer is not None
    read = {piece.text: piece.box for piece in reading.pieces}
    stated = {piece.text: piece.box for piece in layer.pieces}
    shared = {text for text in read.keys() & stated.keys() if len(text) > 3}
    assert len(shared) > 15
    for text in shared:
        assert stated[text].padded(3).holds(read[text].middle)
    document.close()


@pytest.mark.skipif(
    make_reader("rapidocr").missing() is not None, reason="rapidocr is not installed"
)
def test_rapidocr_reads_a_picture(tmp_path: Path) -> None:
    """Its network runs once, on two lines; it gives whole lines with their places."""

    def draw(canvas: Any) -> None:
        canvas.setFont("Helvetica", 20)
        canvas.drawString(20, 60, "The mill stands")
        canvas.drawString(20, 25, "by the river")

    document = open_document(pdfs.write(tmp_path / "a.pdf", [draw], (220, 100)))
    reading = make_reader("rapidocr").read(document.page(1))
    document.close()
    text = " ".join(piece.text for piece in reading.pieces)
    assert "".join(text.split()) == "Themillstandsbytheriver"
    first, *_, last = reading.pieces
    assert first.box.middle[1] < last.box.middle[1]
    assert all(piece.score > 0.5 for piece in reading.pieces)


@pytest.mark.skipif(
    make_layout("rapid-layout").missing() is not None, reason="rapid-layout is not installed"
)
def test_rapid_layout_sees_columns(tmp_path: Path) -> None:
    """A wide page of text, as its network knows them."""
    text = ["The mill by the river grinds rye and oats for seven villages in the valley."] * 12

    def draw(canvas: object) -> None:
        pdfs.lines(canvas, 20, 40, [line[:44] for line in text], 6)  # type: ignore[arg-type]
        pdfs.lines(canvas, 160, 40, [line[-44:] for line in text], 6)  # type: ignore[arg-type]

    document = open_document(pdfs.write(tmp_path / "a.pdf", [draw]))
    regions = make_layout("rapid-layout").find(document.page(1), ())
    assert len([region for region in regions if region.kind == "text"]) == 2
    document.close()


@pytest.mark.parametrize("box", [Box(43, 130, 260, 185), Box(25, 130, 244, 185)])
def test_words_that_a_layout_cuts_off_stay_in_their_line(box: Box, tmp_path: Path) -> None:
    """First words and last words, whose middles lie beside the region."""
    path = pdfs.write(tmp_path / "a.pdf", [pdfs.paragraph])
    with closing(open_document(path)) as document:
        page = document.page(1)
        cut = owners(page.text_layer().pieces, [Region(box, "text")])
        assert None in cut
        (region,) = StandardPipeline("text-layer", FakeLayout(box)).read(page)
    assert region.texts[0].lines == pdfs.PARAGRAPH


def test_rapid_layout_cuts_off_words(tmp_path: Path) -> None:
    """As it does on real pages."""
    pytest.importorskip("rapid_layout")
    path = pdfs.write(tmp_path / "a.pdf", [pdfs.paragraph])
    with closing(open_document(path)) as document:
        page = document.page(1)
        found = make_layout("rapid-layout").find(page, ())
        words = page.text_layer().pieces
        beside = [
            word.text
            for word, owner in zip(words, owners(words, found), strict=True)
            if owner is None
        ]
        (region,) = StandardPipeline("text-layer", "rapid-layout").read(page)
    assert beside == ["In", "for", "It"]
    assert region.texts[0].lines == pdfs.PARAGRAPH


@pytest.mark.parametrize("kind", ["figure", "formula", "table"])
def test_words_beside_something_else_stay_apart(kind: str) -> None:
    page = FakePage(word("beside"), Piece("inside", Box(40, 0, 100, 10), 0))
    layout = FakeLayout(Box(38, 0, 101, 10), kind)
    region, other = StandardPipeline("text-layer", layout).read(page)
    assert {region.texts[0].text, other.texts[0].text} == {"beside", "inside"}


def test_a_region_is_not_widened_by_what_is_above_its_line() -> None:
    mark = Piece("2", Box(105, 0, 110, 8), 0)
    page = FakePage(word("beside"), Piece("text", Box(40, 4, 100, 14), 0), mark)
    texts = StandardPipeline("text-layer", FakeLayout(Box(38, 4.5, 101, 15))).read(page)
    assert sorted(region.texts[0].text for region in texts) == ["2", "beside text"]


PRINTED = "The mill stands by the river and grinds rye for seven villages in the valley."


@pytest.mark.parametrize(
    ("answer", "texts", "is_doubted"),
    [
        (PRINTED, [PRINTED], False),
        ("# the MILL\n\n| stands | by |\n| the | river |", [PRINTED], False),
        (
            f"A figure shows a wheel.\n\n{PRINTED}\n\nBelow it is a map of the valley.",
            [PRINTED],
            False,
        ),
        ("- weveral\n- weversterstersterstrezstrezstrezsrezsrezs", [PRINTED], True),
        ("", [PRINTED], True),
        ("- weveral", ["no such thing is printed here, said the reader of letters", PRINTED], True),
        (PRINTED, ["no such thing is printed here, said the reader of letters", PRINTED], False),
        (PRINTED, ["Downloaded in 1482"], False),
        (PRINTED * 9, ["A running head over a page which was scanned, and nothing else"], True),
        (PRINTED, [], False),
    ],
    ids=[
        "same",
        "other format",
        "longer",
        "nonsense",
        "empty",
        "two readers",
        "one of two agrees",
        "little text",
        "much text",
        "no text",
    ],
)
def test_an_answer_has_text_in_common_with_its_page(
    answer: str, texts: list[str], is_doubted: bool
) -> None:
    assert (disagreement(answer, texts) is not None) == is_doubted


def test_a_running_head_over_a_scan_is_not_compared() -> None:
    head = "Proceedings of the society of millers, volume seven"
    words = " ".join(f"word{number} of{number * 7}" for number in range(60))
    assert disagreement(words, [head]) is None

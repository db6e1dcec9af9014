"""Parsing without a target: what the pipeline reads is the answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pdfs
import pytest
from PIL import Image

import draftlens
from draftlens.documents.reading import pipeline as pipelines
from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.page import Page, Piece, Reading, Region, RegionText
from draftlens.documents.reading.pipeline import Phase, untimed

TEXT = """\
# Of mills and bridges

The mill stands by the river and grinds rye for seven villages in the valley.

A second column says that 1482 sacks were carried over the old bridge in one year."""


class Ocr:
    """Reads two words."""

    def read(self, page: Page) -> Reading:
        """See `Reader.read`."""
        return Reading("tesseract", (Piece("two words", page.box.padded(-5), line=0),))


@pytest.fixture(autouse=True)
def _no_ocr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "installed_ocr", lambda: None)


def parse(path: Path, **options: Any) -> list[draftlens.ParsedPage]:
    return list(draftlens.parse(path, **{"layout": "blocks", **options}))


def scan(path: Path) -> Path:
    picture = Image.new("RGB", (90, 60), "white")
    picture.paste((0, 0, 0), (5, 5, 40, 20))
    picture.save(path)
    return path


def test_the_text_layer_is_the_answer(tmp_path: Path) -> None:
    path = pdfs.write(tmp_path / "a.pdf", [pdfs.columns, pdfs.blank])
    page, blank = parse(path)
    assert page.error is None
    assert page.markdown == TEXT
    assert (page.file, page.number, page.source, page.ended) == (str(path), 1, "text layer", "read")
    spans = [page.markdown[slice(*region.span)] for region in page.regions if region.span]
    assert spans == TEXT.split("\n\n")
    assert (blank.ended, blank.source, blank.markdown) == ("blank", "none", "")


def test_the_json_claims_nothing_of_a_model(tmp_path: Path) -> None:
    (page,) = parse(pdfs.write(tmp_path / "a.pdf", [pdfs.columns]))
    values = page.to_dict()
    assert values["source"] == "text layer"
    for name in ("lossless", "stages", "tokens", "verification", "error"):
        assert values[name] is None
    assert values["stats"] == values["shares"] == {}
    assert values["approximate"] == []
    assert values["seconds"].keys() == {"layout", "read"}


def test_running_heads_alone_are_left_out(tmp_path: Path) -> None:
    """Not the words of figures, unless a format is named that leaves them out."""
    kinds = ("header", "figure", "text", "footer")

    class Kinds:
        def read(self, page: Page, phase: Phase = untimed) -> list[Region]:
            """A region of each kind."""
            return [
                Region(Box(0, 9 * n, 9, 9 * n + 9), kind, n, (RegionText("mine", (kind,)),))
                for n, kind in enumerate(kinds)
            ]

    path = pdfs.write(tmp_path / "a.pdf", [pdfs.columns])
    (page,) = parse(path, pipeline=Kinds())
    assert page.markdown.split() == ["figure", "text"]
    assert [place.span is None for place in page.regions] == [True, False, False, True]
    (page,) = parse(path, pipeline=Kinds(), running_heads=True)
    assert page.markdown.split() == list(kinds)
    assert page.source == "mine"
    (page,) = parse(path, pipeline=Kinds(), form="markdown")
    assert page.markdown == "text"


def test_tables_of_the_layout_are_tables_unless_they_are_columns_of_text(tmp_path: Path) -> None:
    class Tables:
        sees = False

        def missing(self) -> None:
            """See `Layout.missing`."""

        def find(self, page: Page, pieces: Any) -> list[Region]:
            """All is a table."""
            return [Region(page.box, "table")]

    def table(canvas: Any) -> None:
        pdfs.lines(canvas, 30, 30, ["Mill", "old"])
        pdfs.lines(canvas, 150, 30, ["Sacks", "14|82"])

    def prose(canvas: Any) -> None:
        pdfs.lines(
            canvas,
            10,
            30,
            ["The mill stands by the river and grinds", "rye for seven villages in the valley."],
            6,
        )
        pdfs.lines(
            canvas,
            160,
            30,
            ["A second column says that many sacks", "were carried over the old bridge in May."],
            6,
        )

    path = pdfs.write(tmp_path / "a.pdf", [table, prose])
    first, second = parse(path, layout=Tables())
    assert first.markdown == "| Mill | Sacks |\n|---|---|\n| old | 14\\|82 |"
    assert second.markdown == (
        "The mill stands by the river and grinds rye for seven villages in the valley.\n\n"
        "A second column says that many sacks were carried over the old bridge in May."
    )


def test_a_page_that_nothing_can_read_is_an_error_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = scan(tmp_path / "a.png")
    Image.new("RGB", (90, 60), "white").save(tmp_path / "b.png")
    pdfs.write(tmp_path / "c.pdf", [pdfs.columns])
    failed, blank, read = parse(tmp_path)
    assert failed.error == (
        f"cannot read {path}, page 1: the file is a picture, and no OCR engine is installed: "
        "apt install tesseract-ocr, or pip install 'draftlens[ocr]'"
    )
    assert failed.ended == "failed"
    assert (blank.error, blank.ended) == (None, "blank")
    assert read.markdown == TEXT
    (named,) = parse(path, drafter="text-layer")
    assert named.error == f"cannot read {path}, page 1: the file is a picture"
    monkeypatch.setattr(pipelines, "installed_ocr", Ocr)
    (recognized,) = parse(path)
    assert (recognized.markdown, recognized.source) == ("two words", "ocr")


def test_a_text_layer_that_lies_is_not_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pdfs.write(tmp_path / "a.pdf", [pdfs.columns])
    monkeypatch.setattr("draftlens.documents.reading.readers._MOST_UNREADABLE", -1.0)
    (page,) = parse(path)
    assert page.error is not None
    assert "of its characters stand for nothing that is printed, and no OCR engine" in page.error
    assert page.error.endswith("the drafter text-layer takes the text layer as it is")
    (page,) = parse(path, drafter="text-layer")
    assert page.markdown == TEXT
    monkeypatch.setattr(pipelines, "installed_ocr", Ocr)
    (page,) = parse(path)
    assert (page.markdown, page.source) == ("two words", "ocr")


def test_what_a_terminal_obeys_is_not_in_the_answer(tmp_path: Path) -> None:
    class Escaping:
        def read(self, page: Page, phase: Phase = untimed) -> list[Region]:
            """A text with a control character."""
            return [
                Region(page.box, "text", 0, (RegionText("mine", ("a\x1b[31m\x9bb\x92s \x80 5",)),))
            ]

    (page,) = parse(pdfs.write(tmp_path / "a.pdf", [pdfs.columns]), pipeline=Escaping())
    assert page.markdown == "a[31m›b’s € 5"


@pytest.mark.parametrize(
    "options",
    [
        {"stages": "regions"},
        {"verify": True},
        {"max_new_tokens": 5},
        {"method": "plain"},
        {"drafter": "none"},
        {"device": "cpu"},
        {"compile": True},
    ],
)
def test_options_of_a_target_are_refused(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(draftlens.ConfigError, match=f"^{name}=.* needs a document model: name one"):
        draftlens.parse("a.pdf", **options)


def test_torch_is_not_imported(tmp_path: Path) -> None:
    path = pdfs.write(tmp_path / "a.pdf", [pdfs.columns])
    code = (
        "import sys, draftlens.cli; sys.argv = ['draftlens', 'parse', sys.argv[1]]\n"
        "try:\n    draftlens.cli.main()\n"
        "finally:\n    assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    run = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert run.stdout.startswith("# Of mills and bridges\n\nThe mill")
    assert (run.returncode, run.stderr) == (0, "")


def test_pictures_are_cut_out_and_named(tmp_path: Path) -> None:
    """Of a page of 300 by 400 points; words in one stay."""

    class Drawn:
        def read(self, page: Page, phase: Phase = untimed) -> list[Region]:
            """A picture between two texts, and one that reaches over the edge of the page."""
            texts = [(RegionText("mine", (word,)),) for word in ("above", "inside", "below")]
            return [
                Region(Box(0, 0, 300, 30), "text", 0, texts[0]),
                Region(Box(30, 40, 90, 100), "figure", 1),
                Region(Box(30, 40, 60, 50), "figure", 2, texts[1]),
                Region(Box(0, 300, 900, 399), "figure", 3),
                Region(Box(0, 380, 300, 400), "text", 4, texts[2]),
            ]

    path = pdfs.write(tmp_path / "a.pdf", [pdfs.columns])
    (page,) = parse(path, pipeline=Drawn(), pictures=True)
    names = ["page-0001-1.png", "page-0001-2.png"]
    links = [f"![]({name})" for name in names]
    assert page.markdown.split() == ["above", links[0], "inside", links[1], "below"]
    assert list(page.pictures) == names
    sizes = [picture.size for picture in page.pictures.values()]
    assert sizes == [(126, 126), (625, 207)]  # at 150 pixels an inch, whole ones
    values = page.to_dict()["regions"]
    assert [value["picture"] for value in values] == [None, names[0], None, names[1], None]
    (page,) = parse(path, pipeline=Drawn())
    assert page.markdown.split() == ["above", "inside", "below"]
    assert not page.pictures


@pytest.mark.parametrize(("rows", "is_cut"), [(3, True), (9, False)])
def test_a_form_is_no_picture(tmp_path: Path, rows: int, is_cut: bool) -> None:
    """Words side by side in half of its height."""

    class Form:
        def read(self, page: Page, phase: Phase = untimed) -> list[Region]:
            """Labels and values within a figure as large as the page."""
            whole = Region(Box(0, 0, 300, 400), "figure", 0)
            texts = (RegionText("mine", ("Name",)),)
            return [whole] + [
                Region(Box(left, 10 + 40 * row, left + 90, 35 + 40 * row), "figure", 1, texts)
                for row in range(rows)
                for left in (20, 150)
            ]

    path = pdfs.write(tmp_path / "a.pdf", [pdfs.columns])
    (page,) = parse(path, pipeline=Form(), pictures=True)
    assert bool(page.pictures) == is_cut
    assert page.markdown.count("Name") == 2 * rows


@pytest.mark.parametrize("name", ["pictures", "running_heads"])
def test_a_target_takes_no_settings_of_texts(name: str, tmp_path: Path) -> None:
    path = pdfs.write(tmp_path / "a.pdf", [pdfs.columns])
    with pytest.raises(draftlens.ConfigError, match=f"{name} works without a target"):
        list(draftlens.parse(path, target="embedded", **{name: True}))

"""Drafts from the JSON files of other pipelines: what is read, and what damaged files cost."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import stored_results as stored

from draftlens import ConfigError
from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.page import Page, Region, RegionText
from draftlens.documents.reading.pictures import PicturePage
from draftlens.documents.reading.pipeline import Phase, untimed
from draftlens.documents.reading.stored import pipeline as pipelines
from draftlens.documents.reading.stored.pipeline import StoredPipeline, read_pages
from draftlens.documents.reading.stored.tables import rows_of_html
from draftlens.documents.reading.stored.values import Value


class TextLayer:
    """Says where a draft comes from."""

    def read(self, page: Page, phase: Phase = untimed) -> list[Region]:
        """One region."""
        return [Region(Box(0, 0, 9, 9), "text", 0, (RegionText("text-layer", ("layer",)),))]


class BlankPage(PicturePage):
    """A page of 600 x 800 points of a document that is not read."""

    def __init__(self, source: str, number: int) -> None:
        self.source = source
        self.number = number
        self.box = Box(0, 0, 600, 800)


def write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def read(pipeline: StoredPipeline, source: str = "in/a.pdf", number: int = 1) -> Sequence[Region]:
    return pipeline.read(BlankPage(source, number))


def shown(regions: Sequence[Region]) -> list[tuple[str, int, str]]:
    return [(region.kind, region.level, region.texts[0].text) for region in regions]


@pytest.mark.parametrize("kind", stored.KINDS)
def test_a_page_of_each_pipeline(tmp_path: Path, kind: str) -> None:
    pipeline = StoredPipeline(write(tmp_path / "a.json", stored.KINDS[kind]()), TextLayer())
    regions = read(pipeline)
    item = ("text", 0, "- one") if kind == "paddle" else ("list", 0, "- one")
    assert shown(regions) == [
        ("title", 1, "Of mills"),
        ("text", 0, "The mill stands by\nthe river."),
        item,
        ("table", 0, "Name Sacks\nMill & Co 12"),
        ("formula", 0, "a^2 + b"),
        ("title", 2, "More"),
    ]
    assert regions[3].texts[0].rows == stored.ROWS
    assert [region.texts[0].latex for region in regions] == [False] * 4 + [True, False]
    assert [region.order for region in regions] == list(range(6))
    for place, region in enumerate(regions):
        expected = [60, 60 + 100 * place, 540, 100 + 100 * place]
        assert region.box.to_list() == pytest.approx(expected)
    assert pipeline.take_note() is None
    second = read(pipeline, number=2)
    one_page = kind == "paddle"
    assert second[0].texts[0].text == ("layer" if one_page else "The second page.")
    assert read(pipeline, number=3)[0].texts[0].text == "layer"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["b/a_res.json", "a/auto/a_content_list.json", "a/auto/a_middle.json"], "middle"),
        (["b/a_res.json", "a/auto/a_content_list.json"], "content_list"),
        (["a.json", "a_middle.json"], "docling"),
        (["a_0_res.json", "a_res_copy.json"], "paddle"),
        (["b.json", "ab_middle.json", "a_middle.txt"], None),
    ],
)
def test_a_folder_holds_files_by_the_names_of_documents(
    tmp_path: Path, names: list[str], expected: str | None
) -> None:
    sources = {
        "a.json": "docling",
        "_res": "paddle",
        "_middle": "middle",
        "_content": "content_list",
    }
    for name in names:
        kind = next(value for key, value in sources.items() if key in name or name == "b.json")
        value = stored.KINDS[kind]()
        write(tmp_path / name, value)
    pipeline = StoredPipeline(tmp_path, TextLayer())
    (title, *_) = read(pipeline, "in/a.pdf")
    source = {"middle": "mineru", "content_list": "mineru", None: "text-layer"}
    assert title.texts[0].source == source.get(expected, expected)
    note = pipeline.take_note()
    assert (note is None) == (expected is not None)
    assert note is None or note.startswith(f"{tmp_path} holds nothing about in/a.pdf")


def test_one_file_is_of_the_first_document(tmp_path: Path) -> None:
    pipeline = StoredPipeline(write(tmp_path / "x.json", stored.middle()), TextLayer())
    assert read(pipeline, "a.pdf")[0].texts[0].source == "mineru"
    assert read(pipeline, "b.pdf")[0].texts[0].source == "text-layer"
    with pytest.raises(ConfigError, match=r"there is no file or folder none\.json"):
        StoredPipeline(Path("none.json"), TextLayer())


HUGE = 10**400
BOXES = {
    "docling": ("texts", 1, "prov", 0, "bbox"),
    "content_list": (1, "bbox"),
    "middle": ("pdf_info", 0, "para_blocks", 1, "bbox"),
    "paddle": ("res", "parsing_res_list", 1, "block_bbox"),
}
WRONG_BOXES = (
    [1, 2, 3],
    [1, 2, 3, "4"],
    [1, 2, 3, None],
    [1, 2, 3, True],
    [1, 2, 3, float("nan")],
    [1, 2, 3, float("inf")],
    [1, 2, 3, HUGE],
    [0, 0, 90_000, 90_000],
    [-500, 0, 90, 90],
    [90, 90, 90, 90],
    "box",
    {"l": 1},
    {"l": 1, "t": 9, "r": 5, "b": HUGE},
)


@pytest.mark.parametrize("box", WRONG_BOXES, ids=lambda box: f"{box!s:.20}")
@pytest.mark.parametrize("kind", stored.KINDS)
def test_a_wrong_box_is_named(tmp_path: Path, kind: str, box: Any) -> None:
    value = stored.changed(stored.KINDS[kind](), BOXES[kind], box)
    check(tmp_path, value, place=BOXES[kind])


def check(folder: Path, value: Any, place: tuple[Any, ...] = (), text: str = "") -> str:
    """One sentence names file and place, and the text layer is the draft."""
    file = write(folder / "a.json", value)
    pipeline = StoredPipeline(file, TextLayer())
    assert shown(read(pipeline)) == [("text", 0, "layer")]
    note = pipeline.take_note()
    assert note is not None
    assert note.startswith(f"cannot read {file}: ")
    assert note.endswith("; the text layer is the draft")
    assert len(note) < 500
    assert "\n" not in note
    name = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place).lstrip(".")
    assert name in note
    assert text in note
    assert shown(read(pipeline)) == [("text", 0, "layer")]
    assert pipeline.take_note() is None  # said once
    return note


DEEP = 100_000
PLACES: dict[str, list[tuple[tuple[Any, ...], Any]]] = {
    "docling": [
        (("version",), "2.0.0"),
        (("version",), 1),
        (("pages",), []),
        (("pages", "1"), 5),
        (("pages", "1", "size"), {"width": 600}),
        (("pages", "1", "size", "height"), 0),
        (("pages", "1", "size", "height"), float("nan")),
        (("body",), KeyError),
        (("body", "children"), "texts"),
        (("body", "children", 0), {"ref": "#/texts/0"}),
        (("body", "children", 0, "$ref"), "#/texts/99"),
        (("body", "children", 0, "$ref"), "#/texts/-1"),
        (("body", "children", 1, "$ref"), "#/texts/0"),
        (("groups", 0, "children", 0, "$ref"), "#/groups/0"),
        (("texts", 1, "text"), ["a"]),
        (("texts", 1, "prov", 0, "page_no"), 9),
        (("texts", 1, "prov", 0, "page_no"), 1.5),
        (("texts", 4, "level"), HUGE),
        (("tables", 0, "data"), KeyError),
        (("tables", 0, "data", "table_cells", 0, "start_row_offset_idx"), 99_999),
        (("tables", 0, "data", "table_cells", 0, "start_col_offset_idx"), HUGE),
    ],
    "content_list": [
        ((1, "page_idx"), -1),
        ((1, "page_idx"), "0"),
        ((1, "page_idx"), HUGE),
        ((1, "type"), 5),
        ((1, "text"), 5),
        ((0, "text_level"), "1"),
        ((2, "list_items"), [5]),
        ((3, "table_body"), 5),
        ((3, "table_body"), "<table>" + "<tr><td colspan=999>x</td></tr>" * 200),
    ],
    "middle": [
        (("pdf_info",), "pages"),
        (("pdf_info", 0), []),
        (("pdf_info", 0, "page_size"), [600]),
        (("pdf_info", 0, "page_idx"), KeyError),
        (("pdf_info", 0, "para_blocks", 1, "type"), KeyError),
        (("pdf_info", 0, "para_blocks", 1, "lines"), {}),
        (("pdf_info", 0, "para_blocks", 1, "lines", 0, "spans"), 1),
        (("pdf_info", 0, "para_blocks", 0, "level"), []),
    ],
    "paddle": [
        (("res", "width"), KeyError),
        (("res", "height"), -5),
        (("res", "page_index"), "one"),
        (("res", "parsing_res_list", 1), None),
        (("res", "parsing_res_list", 1, "block_label"), KeyError),
        (("res", "parsing_res_list", 1, "block_content"), {}),
        (("res", "parsing_res_list", 1, "block_order"), "first"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "place", "new"),
    [(kind, place, new) for kind, places in PLACES.items() for place, new in places],
    ids=lambda each: f"{each!s:.40}",
)
def test_a_wrong_value_is_named(
    tmp_path: Path, kind: str, place: tuple[Any, ...], new: Any
) -> None:
    check(tmp_path, stored.changed(stored.KINDS[kind](), place, new))


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "it is no JSON"),
        (json.dumps(stored.middle())[:400], "it is no JSON"),
        ("[" * DEEP, "it is nested too deeply"),
        ('{"pdf_info":' * DEEP, "it is nested too deeply"),
        ("9" * 10_000, "it is no JSON"),
        ("5", "it is no result of Docling, MinerU or PP-StructureV3"),
        ("{}", "it is no result of"),
        ('[{"page_idx": null}]', "it is no result of"),
        ('[[{"type": "paragraph", "content": {}}]]', "it is no result of"),  # content_list_v2
        ('{"schema_name": "DoclingDocument"}', "has version ''"),
        ("\x00\x01", "it is no JSON"),
    ],
    ids=lambda each: f"{each!s:.20}",
)
def test_files_that_are_none_of_these(tmp_path: Path, text: str, cause: str) -> None:
    check(tmp_path, text, text=cause)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.json").mkdir()
    write(tmp_path / "in" / "a.json", stored.middle())
    with pytest.raises(OSError, match="directory"):
        read_pages(tmp_path / "folder.json")
    monkeypatch.setattr(pipelines, "MOST_BYTES", 50)
    check(tmp_path, stored.middle(), text="more than 50 bytes")
    monkeypatch.setattr(pipelines, "MOST_BYTES", 10**9)
    monkeypatch.setattr(pipelines, "MOST_REGIONS", 5)
    check(tmp_path, stored.middle(), text="page 1 has more than 5 regions")


JUNK = (
    None,
    True,
    -1,
    0.5,
    HUGE,
    float("nan"),
    "",
    "\x00",
    "<td colspan=9>",
    [],
    {},
    [[]],
    {"a": 1},
)


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, inside in items:
        found.append((*place, key))
        if isinstance(inside, dict | list):
            found += _places(inside, (*place, key))
    return found


@pytest.mark.parametrize("kind", stored.KINDS)
def test_no_value_at_any_place_costs_a_page(tmp_path: Path, kind: str) -> None:
    """What can be read is read, and all else is a sentence."""
    rng = random.Random(5)
    whole = stored.KINDS[kind]()
    notes = 0
    for place in _places(whole):
        for new in rng.sample(JUNK, 3):
            file = write(tmp_path / "a.json", stored.changed(whole, place, new))
            pipeline = StoredPipeline(file, TextLayer())
            assert read(pipeline)
            note = pipeline.take_note()
            assert note is None or len(note.splitlines()) == 1
            notes += note is not None
    assert notes > 100


def test_regions_that_overlap_are_no_drafts(tmp_path: Path) -> None:
    """Those of figures may, and parts of one block."""
    place = ("pdf_info", 0, "para_blocks", 1, "bbox")
    value = stored.changed(stored.middle(), place, [60, 90, 540, 320])
    pipeline = StoredPipeline(write(tmp_path / "a.json", value), TextLayer())
    assert shown(read(pipeline)) == [("text", 0, "layer")]
    note = pipeline.take_note()
    assert note is not None
    assert note.startswith("in/a.pdf, page 1: regions overlap in ")
    value = stored.changed(value, (*place[:-1], "type"), "image_body")
    pipeline = StoredPipeline(write(tmp_path / "a.json", value), TextLayer())
    assert len(read(pipeline)) == 6


def test_edges_are_cut_a_little(tmp_path: Path) -> None:
    value = stored.changed(stored.content_list(), (1, "bbox"), [-9, 200, 1010, 250])
    pipeline = StoredPipeline(write(tmp_path / "a.json", value), TextLayer())
    assert read(pipeline)[1].box.to_list() == [0, 160, 600, 200]


@pytest.mark.parametrize(
    ("html", "rows"),
    [
        ("<table><tr><th>a<td>b<br>c</table>", [["a", "b c"]]),
        (
            "<table><tr><td rowspan=2>a</td><td colspan='2'>b</td></tr><tr><td>c</td><td>d</td>"
            "</tr><tr><td>e</td></tr></table>",
            [["a", "b", ""], ["", "c", "d"], ["e"]],
        ),
        ("<td>a</td>", [["a"]]),
        ("<table><tr><td colspan=x>a &lt; b</td></tr>", [["a < b"]]),
        ("no table", []),
    ],
)
def test_rows_of_html(html: str, rows: list[list[str]]) -> None:
    assert rows_of_html(Value(html)) == rows

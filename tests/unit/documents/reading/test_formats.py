"""Drafts speak the language of the target."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from draftlens import ConfigError
from draftlens.documents.reading.formats import FORMATS, Canvas, LearningFormat, make_format
from draftlens.documents.reading.formats.base import page_drafts, region_drafts
from draftlens.documents.reading.formats.notation import (
    HtmlTables,
    MarkdownTables,
    table_notation,
)
from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.page import BROKEN_WORD, Region, RegionText
from draftlens.documents.reading.targets import GENERAL, PROFILES, TargetProfile, profile_of
from draftlens.documents.reading.variants import variants

CANVAS = Canvas(Box(0, 0, 100, 200), 50, 100)
BOX = Box(10, 20, 90, 40)


def region(kind: str, *lines: str, **text: object) -> Region:
    return Region(BOX, kind, 0, (RegionText("mine", lines, **text),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("plain", "words"), ["plain words", "plain\nwords"]),
        (
            (f"sev{BROKEN_WORD}", "eral"),
            ["several", "sev-eral", "sev-\neral"],
        ),
        (("the year-", "book"), ["the yearbook", "the year-book", "the year-\nbook"]),
        (("in 1914-", "18"), ["in 1914-18", "in 1914-\n18"]),
        ((f"Barnes{BROKEN_WORD}", "Jewish"), ["Barnes-Jewish", "Barnes-\nJewish"]),
        ((f"INTRO{BROKEN_WORD}", "DUCTION"), ["INTRODUCTION", "INTRO-DUCTION", "INTRO-\nDUCTION"]),
        (("a dash -", "Here"), ["a dash - Here", "a dash -Here", "a dash -\nHere"]),
        (("ﬁne ﬂour", "o\u00adver"), ["fine flour over", "fine flour\nover"]),
        (("流体力", "学です"), ["流体力学です", "流体力\n学です"]),
        (("", "  "), []),
    ],
)
def test_variants_of_lines(lines: tuple[str, ...], expected: list[str]) -> None:
    assert variants(lines) == expected


TABLE = region("table", "Name Sacks", "Mill & Co 12", rows=(("Name", "Sacks"), ("Mill & Co", "12")))


@pytest.mark.parametrize(
    ("form", "given", "expected"),
    [
        ("markdown", region("title", "On", "mills"), ["# On mills", "## On mills"]),
        ("markdown", TABLE, ["| Name | Sacks |\n|---|---|\n| Mill & Co | 12 |"]),
        (
            "markdown-html",
            TABLE,
            [
                "<table><tr><td>Name</td><td>Sacks</td></tr>"
                "<tr><td>Mill &amp; Co</td><td>12</td></tr></table>"
            ],
        ),
        ("doctags", TABLE, ["<ched>Name<ched>Sacks<nl><fcel>Mill & Co<fcel>12<nl>"]),
        ("text-otsl", TABLE, ["<fcel>Name<fcel>Sacks<nl><fcel>Mill & Co<fcel>12<nl>"]),
        ("doclang", TABLE, ["<ched/>Name<ched/>Sacks<nl/><fcel/>Mill & Co<fcel/>12<nl/>"]),
        ("doclang", region("text", "Mill & Co"), ["<![CDATA[Mill & Co]]>"]),
        ("grounding", region("figure", "in it"), []),
        ("markdown", region("text", "• one", "• two", "more"), ["- one\n- two more"]),
        ("markdown", region("footer", "7"), []),
        ("layout-json", region("footer", "7"), ["7"]),
        ("text", region("footer", "7"), ["7"]),
        ("markdown", region("text", "# kept", markup=True), ["# kept"]),
    ],
)
def test_drafts_of_regions(form: str, given: Region, expected: list[str]) -> None:
    drafts = make_format(form).region(given, given.texts[0])
    assert drafts[: len(expected)] == expected
    assert bool(drafts) == bool(expected)


RAGGED = (("a", "b", "c"), ("d",), ("e|f", "", "<g>"))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            "Text\n\n|x|y|\n|:---|:---|\n|1|2|",
            "|a|b|c|\n|:---|:---|:---|\n|d|||\n|e\\|f||<g>|",
        ),
        (
            "| x | y |\n| --- | --- |\n| 1 | 2 |",
            "| a | b | c |\n| --- | --- | --- |\n| d |  |  |\n| e\\|f |  | <g> |",
        ),
        (
            "<table><tr><td>x</td><td>y</td></tr></table>",
            "<table><tr><td>a</td><td>b</td><td>c</td></tr><tr><td>d</td></tr>"
            "<tr><td>e|f</td><td></td><td>&lt;g&gt;</td></tr></table>",
        ),
        (
            "<table>\n<thead>\n<tr>\n<th>x</th>\n<th>y</th>\n</tr>\n</thead>\n<tbody>\n<tr>\n<td>1"
            "</td>\n<td>2</td>\n</tr>\n</tbody>\n</table>",
            "<table>\n<thead>\n<tr>\n<th>a</th>\n<th>b</th>\n<th>c</th>\n</tr>\n</thead>\n<tbody>\n"
            "<tr>\n<td>d</td>\n</tr>\n<tr>\n<td>e|f</td>\n<td></td>\n<td>&lt;g&gt;</td>\n</tr>\n"
            "</tbody>\n</table>",
        ),
        (
            '<table border="1"><tr><td colspan="2">x</td></tr><tr><td>1</td><td>2</td></tr>'
            "<tr><td>3</td><td>4</td></tr></table>",
            '<table border="1"><tr><td colspan="2">a</td><td>b</td><td>c</td></tr>'
            "<tr><td>d</td></tr><tr><td>e|f</td><td></td><td>&lt;g&gt;</td></tr></table>",
        ),
    ],
)
def test_tables_are_written_as_the_last_answer_has_them(answer: str, expected: str) -> None:
    form = make_format("markdown")
    assert isinstance(form, LearningFormat)
    given = region("table", "a", rows=RAGGED)
    assert len(region_drafts(form, given)) == 2
    assert region_drafts(form.after(answer), given) == [expected]
    assert region_drafts(form.after("no table"), given) == region_drafts(form, given)


def test_otsl_is_written_as_the_last_answer_has_it() -> None:
    form = make_format("text-otsl")
    assert isinstance(form, LearningFormat)
    given = region("table", "a", rows=RAGGED)
    expected = "<{}>a<{}>b<{}>c<nl><fcel>d<ecel><ecel><nl><fcel>e|f<ecel><fcel><g><nl>"
    fcel, ched = (expected.format(*[mark] * 3) for mark in ("fcel", "ched"))
    assert region_drafts(form, given)[0] == fcel
    assert region_drafts(form.after(f"<ched>x<nl>{fcel}"), given) == [ched]
    assert region_drafts(form.after(fcel), given) == [fcel]
    assert region_drafts(form.after("$$ x $$"), region("formula", "a", latex=True)) == ["$$ a $$"]


def test_an_answer_is_written_again_token_for_token() -> None:
    """Whatever the first answer shows is how its own cells are written."""
    rows = (("x", "y"), ("1", "2"), ("3", "4"))
    for way in (MarkdownTables("", ":--:"), HtmlTables(), HtmlTables("<table>\n<tr><th>")):
        written = way.write(rows)
        assert table_notation(f"before\n\n{written}\n\nafter").write(rows) == written  # type: ignore[union-attr]
    assert table_notation("<table></table>") is None
    assert table_notation("a | b") is None


@pytest.mark.parametrize(
    ("form", "answer", "expected"),
    [
        ("markdown", "", ["$$\na^2\n$$", "\\[\na^2\n\\]"]),
        ("markdown", "See $$ x $$ and", ["$$ a^2 $$"]),
        ("markdown-html", "\\[ x \\]", ["\\[ a^2 \\]"]),
        ("layout-json", '[{"text": "$$x$$"}, {"bbox": []}]', ["$$a^2$$"]),
        ("layout-json", "cut of", ["$$\na^2\n$$", "\\[\na^2\n\\]"]),
    ],
)
def test_formulas_are_latex_in_the_notation_of_answers(
    form: str, answer: str, expected: list[str]
) -> None:
    made = make_format(form)
    assert isinstance(made, LearningFormat)
    given = region("formula", "a^2", latex=True)
    assert region_drafts(made.after(answer), given) == expected


def test_formulas_of_other_formats() -> None:
    given = region("formula", "a^2", latex=True)
    assert region_drafts(make_format("text"), given)[0] == "$$\na^2\n$$"
    assert region_drafts(make_format("doctags"), given) == ["a^2"]
    assert region_drafts(make_format("text"), TABLE) == ["Name Sacks\nMill & Co 12"]


def test_what_a_format_leaves_out_comes_last() -> None:
    """A layout may take text for a figure."""
    form = make_format("markdown")
    figure = region("figure", "words in", "it")
    assert page_drafts(form, [figure, region("text", "text")], CANVAS) == ["text", "words in\nit"]


def test_paragraphs_keep_their_lines_for_the_method_that_joins_them() -> None:
    form = make_format("markdown")
    assert region_drafts(form, region("text", "ﬁne", f"sev{BROKEN_WORD}", "eral")) == [
        "fine\nsev-\neral"
    ]
    assert region_drafts(form, region("title", "On", "mills")) == ["# On mills"]
    assert region_drafts(form, region("header", "7")) == []


def test_json_is_escaped_and_places_are_pixels() -> None:
    form = make_format("layout-json")
    quoted = region("text", 'He said "no"', "and left")
    (draft, *_) = page_drafts(form, [quoted], CANVAS)
    assert '\\"no\\"' in draft
    assert json.loads(draft) == [
        {"bbox": [5, 10, 45, 20], "category": "Text", "text": 'He said "no" and left'}
    ]


def test_doctags_name_places_on_their_grid() -> None:
    (draft, *_) = page_drafts(make_format("doctags"), [region("text", "Hello")], CANVAS)
    place = "<loc_50><loc_50><loc_450><loc_100>"
    assert draft == f"<doctag><text>{place}Hello</text>\n</doctag>"


def _items(*lines: str) -> list[Region]:
    return [region("text", "Hello"), *[region("list", line) for line in lines], TABLE]


def test_lists_of_doctags_hold_their_items() -> None:
    (draft, *_) = page_drafts(make_format("doctags"), _items("• one", "- two"), CANVAS)
    place = "<loc_50><loc_50><loc_450><loc_100>"
    assert draft == (
        f"<doctag><text>{place}Hello</text>\n<unordered_list><list_item>{place}one</list_item>\n"
        f"<list_item>{place}two</list_item>\n</unordered_list>\n<otsl>{place}<ched>Name<ched>Sacks"
        "<nl><fcel>Mill & Co<fcel>12<nl></otsl>\n</doctag>"
    )
    (draft, *_) = page_drafts(make_format("doctags"), _items("1. one")[1:2], CANVAS)
    assert draft == (
        f"<doctag><ordered_list><list_item>{place}one</list_item>\n</ordered_list>\n</doctag>"
    )


def test_doclang_has_one_list_for_items_that_follow_each_other() -> None:
    regions = [replace(region("title", "On mills"), level=2), *_items("1. one", "2. two")]
    (draft, *_) = page_drafts(make_format("doclang"), regions, CANVAS)
    place = "".join(f'<location value="{value}"/>' for value in (51, 51, 461, 102))
    assert draft == (
        f'<doclang><heading level="2">{place}On mills</heading><text>{place}Hello</text>'
        f'<list class="ordered"><ldiv/>{place}one<ldiv/>{place}two</list><table>{place}'
        "<ched/>Name<ched/>Sacks<nl/><fcel/>Mill & Co<fcel/>12<nl/></table></doclang>"
    )
    (draft, *_) = page_drafts(make_format("doclang"), [region("footer", "7")], CANVAS)
    assert draft == (
        f'<doclang><page_footer><layer value="furniture"/>{place}7</page_footer></doclang>'
    )


def test_grounding_names_the_place_of_each_text() -> None:
    regions = [replace(region("title", "On mills"), level=1), region("text", "Hello")]
    (draft, *_) = page_drafts(make_format("grounding"), regions, CANVAS)
    place = "<|det|>[[100, 100, 899, 200]]<|/det|>"
    assert draft == (
        f"<|ref|>title<|/ref|>{place}\n# On mills\n\n<|ref|>text<|/ref|>{place}\nHello"
    )


def test_front_matter_comes_first_and_follows_the_last_answer() -> None:
    form = make_format("markdown-yaml")
    assert isinstance(form, LearningFormat)
    text = region("text", "Hello there")
    first, *others = page_drafts(form, [text], CANVAS)
    assert first.startswith("---\nprimary_language: en\n")
    assert "is_table: False" in first
    assert others == ["Hello there"]
    assert "is_table: True" in page_drafts(form, [TABLE, region("text", "a")], CANVAS)[0]
    german = first.replace("en", "de")
    drafts = page_drafts(form.after(f"{german}# Mühlen"), [text], CANVAS)
    assert drafts == [german, first, "Hello there"]
    assert page_drafts(form.after("No front matter"), [text], CANVAS)[0] == first


FIRST = Region(BOX, "text", 0, (RegionText("a", ("x-", "y")), RegionText("b", ("x z",))))
SECOND = Region(BOX, "text", 1, (RegionText("a", ("end",)),))


def test_regions_are_drafts_by_themselves_where_only_space_is_between_them() -> None:
    form = make_format("markdown")
    assert page_drafts(form, [FIRST, SECOND], CANVAS) == ["x-\ny", "x z", "end"]
    assert page_drafts(form, [], CANVAS) == []


def test_other_drafts_are_whole_pages_of_each_reader() -> None:
    form = make_format("layout-json")
    drafts = page_drafts(form, [FIRST, SECOND], CANVAS)
    texts = [[entry["text"] for entry in json.loads(draft)] for draft in drafts]
    assert texts == [["xy", "end"], ["x-y", "end"], ["x z", "end"]]


def test_every_profile_is_whole() -> None:
    for kind, profile in PROFILES.items():
        assert profile.form in FORMATS, kind
        assert profile.prompt_for("table") == profile.region_prompts.get(
            "table", profile.region_prompt
        )
    assert profile_of(type("Config", (), {"model_type": "glm_ocr"})) is PROFILES["glm_ocr"]
    assert profile_of(object()) is GENERAL
    with pytest.raises(ConfigError, match="dpi must be positive"):
        TargetProfile(dpi=0)


@pytest.mark.parametrize(
    ("page", "dpi"),
    [(Box(0, 0, 720, 360), 100.0), (Box(0, 0, 7200, 360), 10.0), (Box(0, 0, 1440, 1440), 35.36)],
)
def test_pictures_stay_within_the_bounds_of_the_target(page: Box, dpi: float) -> None:
    profile = TargetProfile(dpi=100, longest_side=1000, max_pixels=500_000)
    assert profile.dpi_of(page) == pytest.approx(dpi, abs=0.01)

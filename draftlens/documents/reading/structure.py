"""The structure of a page whose text is the answer: running heads, forms, contents, paragraphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from draftlens.documents.reading.assign import (
    ordered,
    pieces_by_region,
    regions_of_blocks,
    text_of,
)
from draftlens.documents.reading.geometry import Box, around
from draftlens.documents.reading.headings import Headings
from draftlens.documents.reading.marks import Marks
from draftlens.documents.reading.page import PageFacts, Reading, Region
from draftlens.documents.reading.paragraphs import LEADERS, divided
from draftlens.documents.reading.ruled_tables import is_form, ruled_table
from draftlens.documents.reading.tables import Row, is_prose, rows_of

_EDGE = 0.15
"""Share of a page's height at its top and bottom where running heads and feet stand."""

_LONGEST_HEAD = 200
"""Characters of a running head or foot."""

_MOST_HEADS = 0.3
"""Share of a page's text above which what the layout takes for running heads and feet is text."""

_PAGE_SHARE = 0.4
"""Share of a page from which a figure with words, above which no text stands, is a form or a page
of a presentation, which has a title at its top."""

_LEAST_RULES = 3
_WIDE = 0.5
"""Lines between the words of a form, and the share of its width that they have."""

_LEAST_ENTRIES = 3
"""Lines of the shortest table of contents."""

_SHIFT = 4.0
"""Points by which an item of a deeper level is indented at least."""

_NESTED = 0.8
"""Share of a region in another one above which it is a part of it."""

_SAME = 0.5
"""Share of a region in the box of a line above which it is that line."""


def prepared(
    regions: Sequence[Region], reading: Reading, facts: PageFacts, page: Box
) -> list[Region]:
    """The regions of a layout as they are read without a target: what looks like a table, a running
    head or a figure may be text."""
    regions = without_nested(without_prose(regions, reading))
    regions = with_running_heads(regions, reading, facts, page)
    return with_contents(with_text_of_figures(regions, reading, facts, page), reading)


def without_prose(regions: Sequence[Region], reading: Reading) -> list[Region]:
    """Remove tables that are columns of running text, which layouts detect on pages of small type:
    their rows would mix the columns; and those of a single row or column."""
    return [
        region
        for region, inside in zip(regions, pieces_by_region(regions, reading), strict=True)
        if not (region.kind == "table" and inside and _is_text(rows_of(inside)))
    ]


def _is_text(rows: Sequence[Row]) -> bool:
    return is_prose(rows) or sum(len(row) > 1 for row in rows) < 2


def without_nested(regions: Sequence[Region]) -> list[Region]:
    """Remove regions of running text inside of larger ones, which are divided into paragraphs."""
    texts = [region.box for region in regions if region.kind == "text"]
    return [
        region
        for region in regions
        if region.kind != "text"
        or all(region.box.area >= box.area or region.box.share_in(box) < _NESTED for box in texts)
    ]


def with_running_heads(
    regions: Sequence[Region], reading: Reading, facts: PageFacts, page: Box
) -> list[Region]:
    """Regions in which the lines that neighbouring pages repeat are running heads and feet, and
    what the layout takes for one elsewhere on the page, or that is long, is text."""
    running = _others(facts.running, reading)
    inside = pieces_by_region(regions, reading)
    lengths = [sum(len(piece.text) + 1 for piece in pieces) for pieces in inside]
    seen = sum(
        length
        for region, length in zip(regions, lengths, strict=True)
        if region.kind in ("header", "footer")
    )
    is_much = seen > _MOST_HEADS * sum(len(piece.text) + 1 for piece in reading.pieces)
    kept = []
    for region, length in zip(regions, lengths, strict=True):
        if any(region.box.share_in(line) > _SAME for line in running):
            continue
        if region.kind in ("header", "footer"):
            is_long = is_much or length > _LONGEST_HEAD
            if is_long or _edge_of(region.box, page) != region.kind:
                region = replace(region, kind="text")
        kept.append(region)
    return [*kept, *(Region(line, _edge_of(line, page) or "header") for line in running)]


def _others(lines: Sequence[Box], reading: Reading) -> Sequence[Box]:
    """The lines unless nothing else is on the page."""
    outside = (not any(line.holds(piece.box.middle) for line in lines) for piece in reading.pieces)
    return lines if any(outside) else ()


def _edge_of(box: Box, page: Box) -> str | None:
    if box.bottom < page.top + _EDGE * page.height:
        return "header"
    return "footer" if box.top > page.bottom - _EDGE * page.height else None


def with_text_of_figures(
    regions: Sequence[Region], reading: Reading, facts: PageFacts, page: Box
) -> list[Region]:
    """Regions and, before them, the blocks of words in figures: forms and diagrams are figures to
    layouts. A form as large as a page is no picture, and its words are captions of its fields."""
    blocks = []
    kept = []
    for region, inside in zip(regions, pieces_by_region(regions, reading), strict=True):
        if region.kind == "figure" and inside:
            found = regions_of_blocks(inside, region.box)
            is_page = region.box.area > _PAGE_SHARE * page.area and _is_first(region, regions)
            is_form = is_page and _has_fields(region.box, found, facts.rules)
            top = page.top + _EDGE * page.height if is_page else page.top
            below = "caption" if is_form else "figure"
            blocks += [
                replace(block, kind="text" if block.box.top < top else below) for block in found
            ]
            # The form stays as a text without words, beside which blocks are read row by row.
            region = replace(region, kind="text") if is_form else region
        kept.append(region)
    return [*blocks, *kept]


def _is_first(region: Region, regions: Sequence[Region]) -> bool:
    """Whether nothing but a running head stands above a region."""
    others = (other for other in regions if other.kind not in ("header", "footer"))
    return not any(other.box.middle[1] < region.box.top for other in others)


def _has_fields(figure: Box, blocks: Sequence[Region], rules: Sequence[Box]) -> bool:
    """Whether wide lines stand between the words of a figure, as between the fields of a form;
    those of a chart's grid are level with the words that label them."""
    levels = {
        round(rule.middle[1])
        for rule in rules
        if rule.width > _WIDE * figure.width and figure.holds(rule.middle)
    }
    between = [
        level
        for level in levels
        if not any(block.box.top < level < block.box.bottom for block in blocks)
    ]
    return len(between) >= _LEAST_RULES


def with_contents(regions: Sequence[Region], reading: Reading) -> list[Region]:
    """Regions with one for each table of contents: lines whose dots lead to a page's number."""
    found: list[list[Row]] = [[]]
    for row in rows_of(reading.pieces) if reading.pieces else ():
        if LEADERS.search(" ".join(cell.text for cell in row)):
            found[-1].append(row)
        elif found[-1]:
            found.append([])
    boxes = [
        around(cell.box for row in rows for cell in row)
        for rows in found
        if len(rows) >= _LEAST_ENTRIES
    ]
    others = [
        region
        for region in regions
        if region.kind == "table" or all(region.box.share_in(box) < _SAME for box in boxes)
    ]
    tables = [region.box for region in others if region.kind == "table"]
    return others + [
        Region(box, "list") for box in boxes if all(box.share_in(table) < _SAME for table in tables)
    ]


def structured(
    regions: Sequence[Region], reading: Reading, facts: PageFacts, headings: Headings
) -> list[Region]:
    """Regions in reading order, divided into paragraphs, headings and items, with their texts."""
    headings.read(reading.pieces, facts)
    marks = Marks()
    parts: list[Region] = []
    for region, inside in zip(regions, pieces_by_region(regions, reading), strict=True):
        whole = [(region, inside)]
        if inside and region.kind in ("table", "formula"):
            text = text_of(reading.source, region.kind, inside)
            ruled = ruled_table(inside, facts.rules) if region.kind == "table" else None
            if ruled is not None:
                text = replace(text, rows=tuple(map(tuple, ruled)))
            if not is_form(text.rows):
                parts.append(replace(region, texts=(text,)))
                continue
            blocks = ordered(regions_of_blocks(inside, region.box))
            form = Reading(reading.source, tuple(inside))
            whole = list(zip(blocks, pieces_by_region(blocks, form), strict=True))
        for block, pieces in whole:
            if pieces:
                parts += divided(block, pieces, reading.source, marks, headings)
            else:
                parts.append(block)
    parts = with_depths(headings.with_levels(parts))
    return [replace(part, order=place) for place, part in enumerate(parts)]


def with_depths(regions: Sequence[Region]) -> list[Region]:
    """Items of lists with their depths, by how far consecutive ones are indented."""
    lefts: list[float] = []
    deep = []
    for region in regions:
        if region.kind != "list":
            lefts = []
            deep.append(region)
            continue
        while lefts and region.box.left < lefts[-1] - _SHIFT:
            lefts.pop()
        if not lefts or region.box.left > lefts[-1] + _SHIFT:
            lefts.append(region.box.left)
        deep.append(replace(region, level=len(lefts) - 1))
    return deep

"""Answers of earlier pages as drafts: what is remembered, and that no token depends on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import families
import pdfs
import pytest

import draftlens
from draftlens.documents.parser import EarlierPages
from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.page import Page, Region, RegionText
from draftlens.documents.reading.pipeline import Phase, untimed
from draftlens.documents.results import ParsedPage
from draftlens.models.adapter import Backbone
from draftlens.models.load import Loaded

END = 9

TEMPLATE = """{%- for message in messages %}{% for item in message['content'] -%}
{%- if item['type'] == 'image' %}IMAGE{% else %}{{ item['text'] }}{% endif -%}
{%- endfor %}{% endfor %} answer: """


def answered(file: str, *tokens: int, ended: str = "end") -> ParsedPage:
    return ParsedPage(file, 1, tokens=tokens, ended=ended)


def test_the_last_pages_of_one_document_are_remembered() -> None:
    earlier = EarlierPages(most_pages=2)
    for page in (answered("a", 1, END), answered("a", 2, END), answered("a", 3, END)):
        earlier.add(page, {END})
    assert earlier.of("a") == [(3,), (2,)]
    assert earlier.of("b") == []
    earlier.add(answered("a", END), {END})
    earlier.add(answered("a", 4, 4, 4, 4, ended="loop"), {END})
    assert earlier.of("a") == [(3,), (2,)]
    earlier.add(answered("b", 5), {END})
    assert earlier.of("b") == [(5,)]
    assert earlier.of("a") == []


def test_their_tokens_are_bounded() -> None:
    earlier = EarlierPages(most_pages=3, most_tokens=5)
    for page in (answered("a", 1, 2), answered("a", 3, 4, 5), answered("a", 6, 7, 8)):
        earlier.add(page, {END})
    assert earlier.of("a") == [(6, 7, 8), (3, 4)]
    earlier.add(answered("a", *range(10, 20)), {END})
    assert earlier.of("a") == [(10, 11, 12, 13, 14)]
    none = EarlierPages(most_pages=0)
    none.add(answered("a", 1), {END})
    assert none.of("a") == []


class TablePipeline:
    """Says that every page has a table, a formula, a text and running heads."""

    def read(self, page: Page, phase: Phase = untimed) -> list[Region]:
        rows = (("aab", "cab"), ("bcd|a", ""), ("<b>", "x & y", "dda"))
        texts = {
            "text": RegionText("fixed", ("abc abd", "bac cab")),
            "header": RegionText("fixed", ("gf ed cb",)),
            "table": RegionText("fixed", ("aab cab", "bcd"), rows=rows),
            "formula": RegionText("layout", ("a^2 + b",), latex=True),
            "footer": RegionText("fixed", ("7",)),
        }
        return [
            Region(Box(0, 30.0 * order, page.box.width, 30.0 * order + 25), kind, order, (text,))
            for order, (kind, text) in enumerate(texts.items())
        ]


@pytest.fixture(scope="module")
def engine() -> draftlens.Engine:
    family = next(family for family in families.FAMILIES if family.name == "qwen3_vl")
    model = family.build(seed=5)
    processor = family.processor()
    processor.chat_template = TEMPLATE.replace("IMAGE", family.image)
    model.generation_config.eos_token_id = [17, 40]
    return draftlens.Engine(Loaded("tiny", Backbone.of(model), processor), None, "plain")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three pages that look alike, an empty one among them, and another one."""
    pages = [pdfs.columns, pdfs.blank, pdfs.columns, pdfs.columns, pdfs.rotated(180)]
    return pdfs.write(tmp_path / "five.pdf", pages)


@pytest.fixture
def given(engine: draftlens.Engine, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The references of each page that the engine answers from here on."""
    given: list[list[Any]] = []
    answer = engine.answer

    def watched(*args: Any, **options: Any) -> Any:
        given.extend(options["references"])
        return answer(*args, **options)

    monkeypatch.setattr(engine, "answer", watched)
    return given


def parse(engine: draftlens.Engine, file: Path, **options: Any) -> list[ParsedPage]:
    """All pages, compared with stock `generate`."""
    options = {"prompt": "abc", "max_new_tokens": 36, "dpi": 40, "on_loop": "ignore"} | options
    pages = list(draftlens.parse(file, engine=engine, verify=True, **options))
    for page in pages:
        assert page.error is None
        assert page.verification is None or page.verification["identical"], page.verification
        assert page.lossless is not False
    return pages


@pytest.mark.pairwise
@pytest.mark.parametrize("method", ["hsd", "lookup"])
@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("form", ["markdown-html", "text", "layout-json", "doctags"])
def test_tables_formulas_and_earlier_pages_change_no_token(
    engine: draftlens.Engine, file: Path, form: str, batch: int, method: str
) -> None:
    pages = parse(engine, file, pipeline=TablePipeline(), form=form, batch=batch, method=method)
    assert pages[3].tokens == pages[0].tokens
    assert pages[3].shares["target"] < pages[0].shares["target"]
    if method == "hsd":  # lookup does not tell references from the answer
        assert pages[3].shares["earlier pages"] > 0.3
    assert "earlier pages" not in pages[0].shares


def test_pages_of_a_batch_do_not_wait_for_each_other(
    engine: draftlens.Engine, file: Path, given: list[list[Any]]
) -> None:
    """The references of a page are the answers of finished batches, the last page first."""
    pages = parse(engine, file, batch=2, method="lookup", drafter="none")
    answers = [tuple(token for token in page.tokens if token not in (17, 40)) for page in pages]
    assert given == [[], [answers[0]], [answers[0]], [answers[3], answers[2]]]


def test_a_parser_forgets_between_calls(engine: draftlens.Engine, file: Path) -> None:
    settings = draftlens.ParseSettings(
        prompt="abc", max_new_tokens=12, dpi=40, pages="1", method="lookup", drafter="none"
    )
    parser = draftlens.DocumentParser(engine, settings)
    first, again = (next(parser.parse(file)) for _ in range(2))
    assert again.tokens == first.tokens
    assert again.shares == first.shares
    parser.earlier_pages = 0
    assert next(parser.parse(file)).tokens == first.tokens


def test_a_second_page_has_the_notation_of_the_first(
    engine: draftlens.Engine,
    file: Path,
    given: list[list[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = iter(("no table", "| a | b |\n| --- | --- |\n| c | d |", "\\[x\\]", ""))
    monkeypatch.setattr("draftlens.documents.asking.Asker.text", lambda self, tokens: next(said))
    parse(engine, file, pipeline=TablePipeline(), form="markdown-html")
    tables = [[text for text in row if "aab" in text and isinstance(text, str)] for row in given]
    kinds = [["<td>" in text for text in row if "bcd" in text] for row in tables]
    assert kinds == [[True, False], [True, False], [False], [False]]
    assert "| --- | --- | --- |" in tables[2][-1]

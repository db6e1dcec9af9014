"""The counts of `documents.py texts`: on pages whose Markdown is known, and those of its report."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]
TOOLS = json.loads((ROOT / "benchmarks/results/documents_texts.json").read_text())["tools"]
OURS = ("draftlens", "draftlens, running heads kept")
SEEDS, PAGES = (0, 2), 2
"""Documents in whose tables no word touches the next cell."""


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, which imports others as the script does."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("documents_parts.texts")


@pytest.fixture
def ledger(texts: Any) -> Any:
    return importlib.import_module("documents_parts.ledger")


def test_tables_and_paragraphs_of_the_generator(texts: Any, ledger: Any, tmp_path: Path) -> None:
    """Files of reportlab in four fonts: nothing is lost, and every row of every table is there."""
    score = texts.Score()
    for seed in SEEDS:
        pages = ledger.repeated_pages(PAGES, seed, says_heads=True)
        file = ledger.as_one_file(pages, tmp_path / f"{seed}.pdf")
        said = "\n".join(page.markdown for page in pages)
        rows = [line.split("|")[1:-1] for line in said.splitlines() if "|" in line]
        truth = {"rows": {"ledger": [row for row in rows if "---" not in row]}}
        (found,) = texts.ours(running_heads=True)([file])
        texts.add(score, "ledger", file, found, truth)
    assert score.pages == len(SEEDS) * PAGES
    assert score.lines > 60
    assert (score.broken, score.lost, score.added) == (0, 0, 0)
    assert score.neighbours > 0
    assert score.apart == 0
    assert score.found["rows"] == score.true["rows"] == len(SEEDS) * PAGES * (ledger.ROWS + 1)


COLUMN = ("the first line of a column of text", "and the second line that follows it")


@pytest.mark.parametrize(
    ("markdown", "counts"),
    [
        ("The first line of a column of text and the second line that follows it.", (0, 1, 0)),
        ("and the second line that follows it the first line of a column of text", (0, 1, 1)),
        ("the first line of a column of text, other words, {1}".format(*COLUMN), (0, 1, 1)),
        ("{} a name: {}".format(*COLUMN), (0, 1, 0)),
        ("the first line of a {1} column of text".format(*COLUMN), (1, 0, 0)),
        ("the first line of a of column text {1}".format(*COLUMN), (1, 0, 0)),
    ],
)
def test_order(
    texts: Any,
    markdown: str,
    counts: tuple[int, int, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of lines, and of words in a line."""
    lines = [texts.letters(line) for line in COLUMN]
    layer = texts.Printed(lines, [(lines[0], lines[1], ["aname"])])
    monkeypatch.setattr(texts, "printed_pages", lambda path: [layer])
    score = texts.Score()
    texts.add(score, "column", tmp_path, texts.Text([markdown], 0.0), {})
    assert (score.broken, score.neighbours, score.apart) == counts


def test_lines_below_each_other(texts: Any) -> None:
    """Long ones with the same left edge and little space between them."""
    from draftlens.documents.reading.geometry import Box
    from draftlens.documents.reading.page import Piece

    places = [(50, 100), (50, 112), (300, 100), (300, 112), (50, 150), (62, 162)]
    pieces = [
        Piece(chr(97 + line) * texts.LONG, Box(left, top, left + 200, top + 10), line)
        for line, (left, top) in enumerate(places)
    ]
    found = texts._printed(pieces)
    assert [pair[0][0] + pair[1][0] for pair in found.neighbours] == ["ab", "cd"]


def test_the_report_keeps_every_line() -> None:
    """With running heads; a worse measurement fails here."""
    whole = TOOLS[OURS[1]]
    assert whole["lines"] >= 6246
    assert whole["broken"] <= 5
    assert (whole["lost"], whole["added"]) == (0, 0)
    assert TOOLS[OURS[0]]["added"] == 0


@pytest.mark.parametrize("kind", ["headings", "items", "rows"])
@pytest.mark.parametrize("ours", OURS)
def test_the_report_beside_other_tools(kind: str, ours: str) -> None:
    """First or second in what is found, and no less than before."""
    found = {tool: score["found"].get(kind, 0) for tool, score in TOOLS.items()}
    peers = [count for tool, count in found.items() if tool not in OURS]
    assert len(peers) >= 2
    assert sum(count > found[ours] for count in peers) < 2
    assert found[ours] >= {"headings": 96, "items": 28, "rows": 16}[kind]

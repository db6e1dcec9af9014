"""The part `repeated`: documents whose pages repeat heads, and a table that runs over all pages.

    python benchmarks/documents.py repeated [--documents 6] [--pages 5] [--read 3]

Passes are counted, all draft tokens checked: of a simulated target that says the Markdown of each
page, and of the package's reader, whose answers are replayed. So the counts are exact. Writes
OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from shared import Benchmark, Report, grid

from documents_parts.ledger import as_one_file, in_html, repeated_pages
from documents_parts.noise import characters
from documents_parts.paged import paired_ratio
from documents_parts.replay import Way, replay
from documents_parts.timing import parser_for, reader
from draftlens.documents.drafting import DraftedPage, PageDrafter
from draftlens.documents.reading.formats.markdown import Markdown
from draftlens.documents.reading.formats.notation import HTML_TABLES, MARKDOWN_TABLES, Notations
from draftlens.documents.reading.open import open_document
from draftlens.documents.reading.pipeline import StandardPipeline
from draftlens.documents.reading.targets import TargetProfile
from draftlens.engine import Engine
from draftlens.methods.lookup.ngram_index import Vocabulary

EARLIER = (0, 1, 2, 4)
LAYOUTS = ("blocks", "rapid-layout")
NO_DRAFTS = "no drafts"
WRONG = 0.05
NOTATIONS: Mapping[str, Notations] = {
    "Markdown": Notations(MARKDOWN_TABLES, None),
    "HTML": Notations(HTML_TABLES, None),
    "both": Notations(MARKDOWN_TABLES, HTML_TABLES),
}

Tokens = tuple[int, ...]
Counts = dict[str, list[tuple[int, int]]]
"""Tokens and passes of each page, by case."""


class Ledgers:
    """Documents of the generator with what pipelines read on them.

    Args:
        tokenizer: of the reader.
        documents: number of documents.
        pages: of each.
        folder: for files.
    """

    def __init__(self, tokenizer: Any, documents: int, pages: int, folder: Path) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = Vocabulary(len(tokenizer))
        self.answers: list[list[str]] = []
        self.files: list[Path] = []
        self._drafted: dict[tuple[str, int], list[DraftedPage]] = {}
        for seed in range(documents):
            drawn = repeated_pages(pages, seed, says_heads=seed % 2 == 1)
            self.answers.append([page.markdown for page in drawn])
            self.files.append(as_one_file(drawn, folder / f"ledger-{seed}.pdf"))

    def drafted(self, layout: str, number: int) -> list[DraftedPage]:
        """The pages of a document as the text layer has them."""
        if (layout, number) not in self._drafted:
            drafter = PageDrafter(StandardPipeline("text-layer", layout), TargetProfile())
            document = open_document(self.files[number])
            count = len(self.answers[number])
            pages = [drafter(document.page(page + 1)) for page in range(count)]
            self._drafted[layout, number] = pages
            document.close()
        return self._drafted[layout, number]

    def ids(self, text: str) -> Tokens:
        """The tokens of an answer, with its end."""
        tokens = self.tokenizer.encode(text, add_special_tokens=False)
        return (*tokens, self.tokenizer.eos_token_id)

    def count(self, answer: Sequence[int], references: Sequence[Any]) -> tuple[int, int]:
        """Tokens and passes of an answer, all draft tokens checked."""
        ends = [self.tokenizer.eos_token_id]
        found = replay(answer, references, self.tokenizer, self.vocabulary, Way(), eos=ends)
        return found.tokens, found.passes


def earlier_pages(ledgers: Ledgers, answers: Sequence[Sequence[Tokens]]) -> dict[str, Counts]:
    """Counts by draft and number of earlier pages whose answers are references, too.

    Args:
        ledgers: the documents.
        answers: what the target says of their pages, of the first documents.
    """
    found: dict[str, Counts] = {}
    for number, said in enumerate(answers):
        for place, answer in enumerate(said):
            for name, drafts in _drafts(ledgers, number, place).items():
                for most in EARLIER:
                    earlier = [tokens[:-1] for tokens in said[max(0, place - most) : place]]
                    count = ledgers.count(answer, [*drafts, *earlier[::-1]])
                    found.setdefault(name, {}).setdefault(str(most), []).append(count)
    return found


def _drafts(ledgers: Ledgers, number: int, place: int) -> dict[str, list[str]]:
    """The drafts of a page by their kind."""
    found: dict[str, list[str]] = {NO_DRAFTS: []}
    for layout in LAYOUTS:
        drafts = ledgers.drafted(layout, number)[place].drafts(Markdown())
        found[f"text layer, {layout}"] = drafts
        noisy = characters(WRONG)(drafts, random.Random(place))
        found[f"{WRONG:.0%} of characters wrong, {layout}"] = noisy
    return found


def notations(ledgers: Ledgers) -> dict[str, Counts]:
    """Counts by layout and notation of the answer, and by what becomes of tables in drafts."""
    found: dict[str, Counts] = {}
    for layout, (number, answers) in product(LAYOUTS, enumerate(ledgers.answers)):
        for place, drafted in enumerate(ledgers.drafted(layout, number)):
            said = {"Markdown": answers[place], "HTML": in_html(answers[place])}
            for notation, answer in said.items():
                ids = ledgers.ids(answer)
                counts = found.setdefault(f"{layout}, answer in {notation}", {})
                for name, drafts in _drafts_by_table(drafted).items():
                    counts.setdefault(name, []).append(ledgers.count(ids, drafts))
    return found


def _drafts_by_table(page: DraftedPage) -> dict[str, list[str]]:
    """Drafts with tables as printed lines, and as cells in some notation."""
    lines = [
        replace(region, kind="text", texts=tuple(replace(text, rows=()) for text in region.texts))
        if region.kind == "table"
        else region
        for region in page.regions
    ]
    found = {"printed lines": replace(page, regions=tuple(lines)).drafts(Markdown())}
    for name, notation in NOTATIONS.items():
        found[name] = page.drafts(Markdown(notations=notation))
    return found


def answers_of(engine: Engine, files: Sequence[Path], most: int) -> list[list[Tokens]]:
    """The reader's answers, which do not depend on drafts.

    Raises:
        AssertionError: drafts change a token.
    """
    ways: Sequence[Mapping[str, Any]] = ({"method": "plain"}, {"drafter": "text-layer"})
    answers = []
    for file in files:
        read = [[page.tokens for page in parser_for(engine, way, most).parse(file)] for way in ways]
        assert read[0] == read[1], "drafts changed a token"
        answers.append(list(read[0]))
    return answers


def measure(args: argparse.Namespace) -> Report:
    """Counts of a simulated target and of the reader."""
    engine = reader(None)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = engine.target.processor.tokenizer
        ledgers = Ledgers(tokenizer, args.documents, args.pages, Path(folder))
        said = answers_of(engine, ledgers.files[: args.read], args.max_new_tokens)
        return {
            "documents": args.documents,
            "pages": args.pages,
            "read": args.read,
            "earlier": earlier_pages(ledgers, [[*map(ledgers.ids, d)] for d in ledgers.answers]),
            "tables": notations(ledgers),
            "reader": earlier_pages(ledgers, said),
        }


TITLES = {
    "earlier": "A simulated target, by number of earlier pages",
    "tables": "A simulated target, by what drafts make of tables",
    "reader": "The package's reader, by number of earlier pages",
}


def page(report: Report) -> list[str]:
    """Tokens a pass by draft."""
    blocks = [
        f"{report['documents']} documents of {report['pages']} pages, of which the reader reads "
        f"{report['read']}. Tokens a pass; in brackets the passes of the first column over those "
        "of this one, with a 95% interval (bootstrap over pages, paired)."
    ]
    for part, title in TITLES.items():
        counts = report[part]
        columns = list(next(iter(counts.values())))
        cell = partial(_cell, counts, columns[0])
        blocks += [f"## {title}", grid("drafts", counts, columns, cell)]
    return blocks


def _cell(counts: Mapping[str, Counts], first: str, name: str, column: str) -> str:
    found = counts[name][column]
    passes = [each[1] for each in found]
    rate = f"{sum(each[0] for each in found) / max(sum(passes), 1):.2f}"
    if column == first:
        return rate
    return f"{rate} [{paired_ratio([each[1] for each in counts[name][first]], passes).text('.2f')}]"


BENCHMARK = Benchmark(
    "documents_repeated",
    __doc__,
    "Documents with repeated heads and tables",
    measure,
    page,
    {
        "--documents": 6,
        "--pages": {"type": int, "default": 5, "help": "of each document"},
        "--read": {"type": int, "default": 3, "help": "documents that the reader reads"},
        "--max-new-tokens": 500,
    },
)

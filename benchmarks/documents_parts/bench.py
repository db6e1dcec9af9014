"""What the sections of the part `claims` share: pages, stock answers, drafts, replays."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rapidfuzz.distance import Levenshtein

from documents_parts.held_out import ORIGINS, HeldOut, drawn, written
from documents_parts.replay import Count, Way, replay
from documents_parts.timing import (
    Spent,
    drafted,
    page_inputs,
    parser_for,
    processor_seconds,
    reader,
    stock_once,
)
from draftlens import DocumentParser
from draftlens.documents.drafting import DraftedPage
from draftlens.documents.reading.layouts import make_layout
from draftlens.methods.lookup.ngram_index import Vocabulary
from draftlens.models.known_pairs import path_of

Cell = str | float | int | None


@dataclass(frozen=True)
class Section:
    """One table of the report.

    Args:
        title: its heading.
        columns: headings, the first one of the rows' names.
        rows: cells.
        note: what the reader of the table should know.
        figures: what claims are judged by, by name.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)


def distance(truth: str, answer: str) -> tuple[int, int]:
    """The edit distance of two texts, and the length of the longer one."""
    return Levenshtein.distance(truth, answer), max(len(truth), len(answer))


class Bench:
    """A loaded reader, held-out pages, and what is known about them so far.

    Args:
        target: folder of the reader; None for that of the package.
        early: folder of an earlier checkpoint of it, as draft model; None for none.
        folder: for files.
        num_pages: of each kind.
        repeats: of everything that is timed.
        max_new_tokens: of a page.
        real: files with one page that are not of the generator.
    """

    def __init__(
        self,
        target: str | None,
        early: str | None,
        folder: Path,
        num_pages: int,
        repeats: int,
        max_new_tokens: int,
        real: Sequence[Path] = (),
    ) -> None:
        self.target = target
        self.early = early
        self.engine = reader(target)
        self.folder = folder
        self.num_pages = num_pages
        self.repeats = repeats
        self.max_new_tokens = max_new_tokens
        self.real = real
        # One object for all parsers: its network is loaded once.
        self.layout = make_layout("rapid-layout")
        self.plain = self.parser(method="plain")
        self.tokenizer = self.plain.asker.tokenizer
        self._files: dict[tuple[str, str], list[HeldOut]] = {}
        self._stock: dict[Path, Spent] = {}

    def parser(self, **way: Any) -> DocumentParser:
        """A parser with some settings of `draftlens.ParseSettings`."""
        return parser_for(self.engine, {"layout": self.layout, **way}, self.max_new_tokens)

    def pages(self, kind: str, origin: str = "born digital") -> list[HeldOut]:
        """Files of pages; those of one kind show the same pages, whatever their origin."""
        key = (kind, origin)
        if key not in self._files:
            name = "".join(character if character.isalnum() else "-" for character in origin)
            pages = drawn(kind, self.num_pages, self.tokenizer)
            self._files[key] = written(kind, pages, ORIGINS[origin], self.folder / name)
        return self._files[key]

    def stock(self, page: HeldOut) -> Spent:
        """The answer of stock `generate`, read once; its seconds are not interleaved with any."""
        if page.file not in self._stock:
            self._stock[page.file] = stock_once(self.plain, page.file, clock=processor_seconds)
        return self._stock[page.file]

    def know(self, page: HeldOut, stock: Spent) -> None:
        """Keep an answer of stock `generate`."""
        self._stock[page.file] = stock

    def answers(self) -> dict[str, Any]:
        """The answers of stock `generate` so far, as JSON values, and which weights gave them."""
        pages = {
            str(file.relative_to(self.folder)): asdict(spent) for file, spent in self._stock.items()
        }
        return {"weights": self.weights, "pages": pages}

    def recall(self, answers: Mapping[str, Any]) -> None:
        """Take over answers of an earlier run, unless other weights gave them."""
        if answers.get("weights") != self.weights:
            return
        for name, values in answers["pages"].items():
            spent = Spent(**{**values, "tokens": tuple(values["tokens"])})
            self._stock[self.folder / name] = spent

    @cached_property
    def weights(self) -> str:
        """What tells the reader, and the limit of its answers, from others."""
        file = Path(path_of(self.engine.target.name, "target")) / "model.safetensors"
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        return f"{digest[:16]}, {self.max_new_tokens} tokens"

    def drafted(self, page: HeldOut, pipeline: Any) -> DraftedPage:
        """A page as a pipeline reads it."""
        return drafted(self.plain, page.file, pipeline)

    def drafts(self, page: HeldOut, pipeline: Any) -> list[str]:
        """The drafts of a page by a pipeline."""
        return self.drafted(page, pipeline).drafts(self.plain.asker.form)

    def replay(
        self,
        page: HeldOut,
        references: Sequence[Any],
        way: Way | None = None,
        answer: Sequence[int] | None = None,
    ) -> Count:
        """How many passes a page takes whose draft tokens are all checked.

        Args:
            page: the page.
            references: its drafts.
            way: how draft tokens are found; with the prefill's chain by default.
            answer: what the target says; None for what it does say.
        """
        backbone = self.engine.target.backbone
        prompt = page_inputs(self.plain, page.file).target["input_ids"][0].tolist()
        return replay(
            self.stock(page).tokens if answer is None else answer,
            references,
            self.tokenizer,
            Vocabulary(backbone.vocab_size, backbone.pixel_ids),
            way or Way(),
            prompt,
            sorted(self.plain.asker.eos),
        )

    def truth(self, page: HeldOut) -> list[int]:
        """What a reader would say that makes no mistake."""
        ids: list[int] = self.tokenizer.encode(page.markdown, add_special_tokens=False)
        return [*ids, *sorted(self.plain.asker.eos)[:1]]

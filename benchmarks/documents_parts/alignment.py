"""Tokens of a pass when a target says what a page holds and the drafts come from noisy readings.

The target is simulated: it says the page's Markdown, token by token, whatever is drafted. So these
are counts and not timings, and they are exact.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftlens_lab.measure.tables import markdown_table
from shared import argument_parser, environment, environment_line, save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from documents_parts.noise import KINDS
from documents_parts.pages import Page, corpus, pages
from documents_parts.real import real_readings
from documents_parts.replay import Count, Way, per_pass, replay
from draftlens.methods.lookup.ngram_index import Vocabulary
from draftlens.models.known_pairs import EMBEDDED, path_of

PREDICTION = """\
Written before the first run, of tokens a pass in the mean of all kinds of noise. Recovery: +25%,
and +50% with wrong characters. Heads: +20%, nothing with one text. Both: +45%. Texts instead of
token ids: +10%, most where lines are joined and words closed. Variants: +15%. The window: 2 is best
with 8,192 ids and 4 with 768, and the difference between 2 and 5 is below 5%. Nodes: 64 give 90% of
what 256 give. Clean readings: above 40 with 8,192 ids."""

VOCABULARY = 8192
END = "<end>"


WAYS: dict[str, Way] = {
    "all": Way(),
    "no recovery": Way().but(recovery=False),
    "no heads": Way().but(heads=False),
    "neither": Way().but(recovery=False, heads=False),
    "token ids": Way().but(by_text=False),
    "token ids, neither": Way().but(by_text=False, recovery=False, heads=False),
    "no variants": Way().but(variants=False),
    "a chain": Way(branches=1),
}
NODES = (8, 16, 32, 64, 128, 256)
WINDOWS = (1, 2, 3, 4, 5, 6)


class Reading:
    """A page, what was read of it, and the tokenizer of the target.

    Args:
        page: the truth.
        regions: what was read.
        tokenizer: of the target.
    """

    def __init__(self, page: Page, regions: Sequence[str], tokenizer: Any) -> None:
        self.regions = regions
        self.tokenizer = tokenizer
        self.end = tokenizer.eos_token_id
        self.answer = [*tokenizer.encode(page.markdown, add_special_tokens=False), self.end]

    def count(self, way: Way) -> Count:
        """Answer, pass by pass."""
        vocabulary = Vocabulary(len(self.tokenizer))
        eos = [self.end]
        return replay(self.answer, self.regions, self.tokenizer, vocabulary, way, eos=eos)


def tokenizers(most_pages: int) -> dict[str, Any]:
    """That of the embedded pair, and a larger one that is trained here."""
    embedded = AutoTokenizer.from_pretrained(path_of(EMBEDDED, "draft"))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(most_pages), trainer)
    larger = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)
    return {f"{len(larger)} ids": larger, f"{len(embedded)} ids": embedded}


def readings_of(found: Sequence[Page], tokenizer: Any) -> dict[str, list[Reading]]:
    """Every page read with every kind of noise."""
    return {
        kind: [
            Reading(page, noisy(list(page.regions), random.Random(number)), tokenizer)
            for number, page in enumerate(found)
        ]
        for kind, noisy in KINDS.items()
    }


def table_of(readings: Mapping[str, Sequence[Reading]], ways: Mapping[str, Way]) -> dict[str, Any]:
    """Tokens a pass by kind of noise and way; the mean of all kinds last."""
    rows: dict[str, dict[str, float]] = {}
    for kind, pages_read in readings.items():
        rows[kind] = {}
        for name, way in ways.items():
            rows[kind][name] = per_pass([reading.count(way) for reading in pages_read])
    rows["mean"] = {name: sum(row[name] for row in rows.values()) / len(readings) for name in ways}
    return rows


def shown(title: str, rows: Mapping[str, Mapping[str, float]]) -> str:
    """A table of figures."""
    header = [title, *next(iter(rows.values()))]
    cells = [[kind, *(f"{value:.2f}" for value in row.values())] for kind, row in rows.items()]
    return "\n".join(markdown_table(header, cells, text_columns=(0,)))


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """All tables by title."""
    found = pages(args.pages)
    seen = real_readings(found[: args.few], args.pdf or []) if args.tesseract else {}
    tables: dict[str, Any] = {}
    for size, tokenizer in tokenizers(args.pages).items():
        readings = readings_of(found, tokenizer)
        tables[f"readings, {size}"] = table_of(readings, WAYS)
        few = {kind: pages_read[: args.few] for kind, pages_read in readings.items()}
        windows = {f"n = {n}": Way().but(window=n) for n in WINDOWS}
        tables[f"windows, {size}"] = table_of(few, windows)
        bare = Way().but(recovery=False, heads=False)
        windows = {f"n = {n}": bare.but(window=n) for n in WINDOWS}
        tables[f"windows, no recovery and no heads, {size}"] = table_of(few, windows)
        nodes = {f"{most} nodes": Way(nodes=most) for most in NODES}
        tables[f"most guesses, {size}"] = table_of(few, nodes)
        real = {
            kind: [Reading(page, texts, tokenizer) for page, texts in read]
            for kind, read in seen.items()
        }
        if real:
            tables[f"real readers, {size}"] = table_of(real, WAYS)
    return tables


def outcome(tables: Mapping[str, Any]) -> str:
    """What became of the predictions, in the mean of all kinds of noise."""
    lines = ["Outcome."]
    for title, rows in tables.items():
        if not title.startswith("readings, "):
            continue
        size = title.removeprefix("readings, ")
        mean = rows["mean"]
        gains = [
            f"{name} {mean['all'] / mean[other] - 1:+.0%}"
            for name, other in (
                ("recovery", "no recovery"),
                ("heads", "no heads"),
                ("both", "neither"),
                ("texts instead of token ids", "token ids"),
                ("variants", "no variants"),
                ("growth", "no growth"),
                ("a tree", "a chain"),
            )
        ]
        windows = tables[f"windows, {size}"]["mean"]
        nodes = tables[f"most guesses, {size}"]["mean"]
        best = max(windows, key=lambda name: windows[name])
        share = nodes["64 nodes"] / nodes["256 nodes"]
        lines.append(
            f"With {size}: {', '.join(gains)}; {best} is best; 64 nodes give {share:.0%} of 256; "
            f"clean readings {rows['clean']['all']:.1f}."
        )
    return "\n".join(lines)


def main() -> None:
    """Count, and write the report."""
    parser = argument_parser(__doc__, "benchmarks/results/documents_alignment", repeats=1)
    parser.add_argument("--pages", type=int, default=12)
    parser.add_argument("--few", type=int, default=4, help="pages of the smaller tables")
    parser.add_argument("--tesseract", action="store_true", help="also print pages and read them")
    parser.add_argument("--pdf", type=Path, action="append", help="with that, a born-digital PDF")
    args = parser.parse_args()
    tables = measured(args)
    facts = environment(args)
    text = "\n\n".join(shown(title, rows) for title, rows in tables.items())
    page = f"{PREDICTION}\n\n{outcome(tables)}\n\n{text}\n\n{environment_line(facts)}\n"
    save(args.out, {"environment": facts, "prediction": PREDICTION, "tables": tables}, page)
    print(page)


if __name__ == "__main__":
    main()

"""Long texts in blocks: a needle and the loss of what follows, by a language model of 135M
parameters (`benchmarks/real_text.py` says how to install it).

Texts are pages of this repository's documentation. A needle is one sentence in them, and the query
is the question about it with what the chat template adds. The loss is that of the next 64 tokens,
where the last 64 tokens of the text are the query.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from draftlens_lab.measure.statistics import central_interval, resamples
from draftlens_lab.plugins.spava_ablation import SpavaAblation
from draftlens_lab.plugins.star import StarPrefill
from real_text import load_model, package_folder
from shared import Benchmark, Report, table

from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prompt
from spava_parts.spoken import along, greedy
from spava_parts.ways import Way, exact, in_blocks, spava

COUNTS: Mapping[int, int] = {1024: 12, 2048: 8, 4096: 4}
"""Texts by their length in tokens."""

FOLLOWING = 64
"""Tokens whose loss is measured, and those of the query before them."""

COLOURS = ("red", "green", "blue", "yellow", "black", "white", "orange", "purple")
WORDS = ("apple", "river", "candle", "window", "garden", "silver", "bridge", "forest", "mirror")


@dataclass(frozen=True)
class Case:
    """A prompt.

    Args:
        ids: its tokens.
        query_tokens: those at its end that are the query.
        answer: what should follow: tokens, or a word.
    """

    ids: list[int]
    query_tokens: int
    answer: list[int] | str


def ways(query_tokens: int) -> dict[str, Way]:
    """Prefills by name."""
    return {
        "full": exact("full"),
        "spava": spava(query_tokens=query_tokens),
        "spava, n/16 passed": spava(passing="n/16", query_tokens=query_tokens),
        "spava, random keys": in_blocks(SpavaAblation(query_tokens=query_tokens, select="random")),
        "spava, nothing passed": spava(passing=0, query_tokens=query_tokens),
        "star": in_blocks(StarPrefill(query_tokens=query_tokens)),
    }


def documentation(tokenizer: Any) -> list[int]:
    """Tokens of all pages, one after the other."""
    pages = sorted((Path(__file__).resolve().parents[2] / "docs").glob("*.md"))
    text = "\n\n".join(page.read_text() for page in pages if page.stem != "claims")
    ids: list[int] = tokenizer(text)["input_ids"]
    return ids


def needle_case(tokenizer: Any, pages: Sequence[int], length: int, seed: int) -> Case:
    """A text of about `length` tokens with one sentence to be found in it."""
    chance = random.Random(seed)
    colour, word = chance.choice(COLOURS), chance.choice(WORDS)
    sentence = f" The secret word of the {colour} box is {word}."
    needle = tokenizer(sentence)["input_ids"]
    first = chance.randrange(len(pages) - length)
    filler = list(pages[first : first + length - len(needle) - 60])
    place = chance.randrange(len(filler))
    text = tokenizer.decode(filler[:place]) + sentence + tokenizer.decode(filler[place:])
    question = f"\n\nWhat is the secret word of the {colour} box? Answer with one word."
    whole, context = (
        tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        for content in (text + question, text)
    )
    tail = whole[len(context[: context.rindex(text) + len(text)]) :]
    ids = tokenizer(whole)["input_ids"]
    return Case(ids, len(tokenizer(tail)["input_ids"]), word)


def loss_case(pages: Sequence[int], length: int, seed: int) -> Case:
    """A text and what follows it."""
    first = random.Random(seed).randrange(len(pages) - length - FOLLOWING)
    ids = list(pages[first : first + length])
    return Case(ids, FOLLOWING, list(pages[first + length : first + length + FOLLOWING]))


def judged(backbone: Backbone, tokenizer: Any, case: Case) -> dict[str, dict[str, float]]:
    """By way: whether the needle is found, or the loss of the answer; and the share of FLOPs."""
    figures = {}
    prompt: Prompt = backbone.text_prompt(torch.tensor([case.ids]))
    for name, way in ways(case.query_tokens).items():
        costed = way(backbone, prompt)
        if isinstance(case.answer, str):
            ends = {tokenizer.eos_token_id}
            tokens = greedy(backbone, costed.read, (), ends, 12).tokens
            value = float(case.answer in tokenizer.decode(tokens).lower())
        else:
            logits = along(backbone, costed.read, case.answer)
            wanted = torch.tensor(case.answer)
            value = float(torch.nn.functional.cross_entropy(logits.float(), wanted))
        figures[name] = {"value": value, "share": costed.share}
    return figures


def row_of(
    task: str, length: int, way: str, figures: Sequence[Mapping[str, Mapping[str, float]]]
) -> dict[str, Any]:
    """The mean, and the mean difference from the full prefill with its 95% interval."""
    values = [each[way]["value"] for each in figures]
    differences = [each[way]["value"] - each["full"]["value"] for each in figures]
    low, high = central_interval(np.array(differences)[resamples(len(values), 0)].mean(1))
    return {
        "task": task,
        "tokens": length,
        "way": way,
        "texts": len(values),
        "mean": statistics.mean(values),
        "difference": statistics.mean(differences),
        "low": low,
        "high": high,
        "attention": statistics.mean(each[way]["share"] for each in figures),
    }


def measure(args: argparse.Namespace) -> Report:
    """A row for each task, length and way."""
    model, tokenizer = load_model(args.folder or package_folder())
    backbone = Backbone(model)
    pages = documentation(tokenizer)
    rows = []
    for length in args.lengths:
        cases = {
            "needle": [needle_case(tokenizer, pages, length, n) for n in range(COUNTS[length])],
            "loss": [loss_case(pages, length, n) for n in range(COUNTS[length])],
        }
        for task, of_task in cases.items():
            figures = [judged(backbone, tokenizer, case) for case in of_task]
            rows += [row_of(task, length, way, figures) for way in figures[0]]
            print(f"{task} at {length} done", flush=True)
    return {"rows": rows}


def page(report: Report) -> list[str]:
    """The rows."""
    columns = {
        "task": "{task}",
        "tokens": "{tokens:,}",
        "prefill": "{way}",
        "texts": "{texts}",
        "mean": "{mean:.3f}",
        "against full": "{difference:+.3f} ({low:+.3f} to {high:+.3f})",
        "attention FLOPs": "{attention:.2f}",
    }
    return [table(report["rows"], columns)]


BENCHMARK = Benchmark(
    "spava_texts",
    __doc__,
    "Long texts in blocks: SmolLM2-135M-Instruct",
    measure,
    page,
    {
        "--folder": {"type": Path, "help": "folder of the weights, if not the package's"},
        "--lengths": {"type": int, "nargs": "+", "choices": COUNTS, "default": list(COUNTS)},
    },
)

"""What a draft's step costs with one view and with several, in time and in memory."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from draftlens_lab.measure.tables import markdown_table
from shared import (
    argument_parser,
    backbones,
    configure,
    environment,
    environment_line,
    interleaved_seconds,
    save,
)

from draftlens import load
from draftlens.core.sampling import SamplingRule
from draftlens.core.sequence import Batch, History
from draftlens.core.tree import chain
from draftlens.drafting.draft_prompt import prefilled
from draftlens.drafting.draft_rows import levels
from draftlens.methods.tabed.mixture import log_mixture
from draftlens.methods.tabed.view_rows import ViewRows
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt

PREDICTION = """\
Written before the first run. Two views of 1,000 and 40 tokens: 1.25 of one view's step on the
embedded draft, whose steps are launches; 1.1 at 16,000. Four views at 1,000: 1.5. A padded batch of
two rows: 1.4 at 1,000 and 2 at 16,000; two passes one by one: 1.8 at 1,000 and 1.1 at 16,000.
Mixing two views of 150,000 ids: 1 to 3 ms."""

LENGTHS = (1000, 16000)
"""Tokens of the view that reads everything."""
TEXT = 40
"""Tokens of the view that reads the words only."""
VOCABULARY = 150_000
STEPS = 4
"""Steps that are timed together: the levels of a chain of five after its first."""


def main() -> None:
    """Time steps, mixing and memory, and write the report."""
    args = parse()
    configure(args.threads)
    _, draft = backbones(load(device="cpu"))
    rows = []
    for length in LENGTHS:
        rows += step_rows(draft, length, args.repeats)
    mixing = mixing_seconds(args.repeats)
    report = {
        "environment": environment(args),
        "prediction": PREDICTION,
        "steps": rows,
        "mixing": mixing,
        "memory": memory_rows(draft),
    }
    save(args.out, report, page(report))
    print(page(report))


def parse() -> argparse.Namespace:
    """Options of the part."""
    parser = argument_parser(__doc__, "benchmarks/results/tabed_steps", repeats=15)
    return parser.parse_args()


def text_prompt(draft: Backbone, length: int) -> Prompt:
    """A prompt of this many tokens; what they are does not matter for time."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(10, draft.vocab_size - 10, (1, length), generator=generator)
    return draft.text_prompt(ids)


def packed(draft: Backbone, prompts: Sequence[Prompt]) -> ViewRows:
    """A model that has read these views of one row."""
    model = ViewRows(draft, draft.vocab_size)
    history = History(torch.zeros(4, dtype=torch.long), [7], 1, 0, SamplingRule())
    drafts = [prefilled(draft, prompt) for prompt in prompts]
    model.join_views(drafts, [(True,) * len(prompts)], Batch((history,)), 64)
    return model


def step_case(model: ViewRows) -> Any:
    """`STEPS` steps of a chain after the pending token, which are then forgotten."""
    assert model.cache is not None
    plan = levels(chain(STEPS + 1))
    token = torch.tensor([[7]])
    step = torch.tensor([[1]])
    pending = [list(tokens) for tokens in model.pending]
    model.begin_round()
    model.catch_up(step)
    base = list(model.lengths)

    def run() -> None:
        for depth in range(STEPS):
            model.expand(token, step + depth, plan[depth])
        model.cache.truncate(base)  # type: ignore[union-attr]
        model.pending = pending

    return run


def padded_case(draft: Backbone, prompts: Sequence[Prompt]) -> Any:
    """The same steps with one row for each view, padded to the longest."""
    longest = max(prompt.lengths[0] for prompt in prompts)
    cache = KVCache(draft.text_config.num_hidden_layers, len(prompts), longest + 64)
    expanded = draft.text_prompt(torch.zeros(len(prompts), longest, dtype=torch.long) + 7)
    draft.prefill(expanded, cache)
    cache.truncate([prompt.lengths[0] for prompt in prompts])
    lengths = list(cache.lengths)
    tokens = torch.full((len(prompts), 1), 7)
    positions = expanded.positions(torch.ones(len(prompts), 1, dtype=torch.long))

    def run() -> None:
        for depth in range(STEPS):
            width = depth + 1
            ends = [length + width for length in lengths]
            mask = torch.zeros(len(prompts), 1, 1, max(ends), dtype=torch.bool)
            for row, end in enumerate(ends):
                mask[row, ..., :end] = True
            draft.forward(tokens, positions, cache, mask)
        cache.truncate(lengths)

    return run


def step_rows(draft: Backbone, length: int, repeats: int) -> list[dict[str, Any]]:
    """Seconds of a step for several sets of views, by layout."""
    everything = text_prompt(draft, length)
    words = text_prompt(draft, TEXT)
    pooled = text_prompt(draft, length // 4)
    pruned = text_prompt(draft, length // 10)
    sets = {"M, T": [everything, words], "four views": [everything, words, pooled, pruned]}
    cases = {"M": step_case(packed(draft, [everything]))}
    for name, prompts in sets.items():
        cases[f"{name}, packed"] = step_case(packed(draft, prompts))
        cases[f"{name}, padded batch"] = padded_case(draft, prompts)
        alone = [step_case(packed(draft, [prompt])) for prompt in prompts]

        def one_by_one(alone: list[Any] = alone) -> None:
            for run in alone:
                run()

        cases[f"{name}, one by one"] = one_by_one
    seconds = interleaved_seconds(cases, repeats)
    reference = seconds["M"]
    rows = []
    for name, values in seconds.items():
        ratios = [value / base for value, base in zip(values, reference, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        step = statistics.median(values) / STEPS
        rows.append({"length": length, "case": name, "seconds": step, "ratio": [low, middle, high]})
    return rows


def mixing_seconds(repeats: int) -> dict[str, float]:
    """Seconds to mix the distributions of some views over a large vocabulary, once."""
    generator = torch.Generator().manual_seed(0)
    cases = {}
    for views in (2, 4):
        logits = torch.randn(1, views, 1, VOCABULARY, generator=generator)
        weights = torch.zeros(1, views, 1).log_softmax(1)

        def mix(logits: torch.Tensor = logits, weights: torch.Tensor = weights) -> None:
            log_mixture(logits.log_softmax(-1), weights).argmax(-1)

        cases[f"{views} views"] = mix
    seconds = interleaved_seconds(cases, repeats)
    return {name: statistics.median(values) for name, values in seconds.items()}


def memory_rows(draft: Backbone) -> list[dict[str, Any]]:
    """Bytes of keys and values packed, and of the views one by one."""
    rows = []
    for length in LENGTHS:
        prompts = [text_prompt(draft, size) for size in (length, TEXT, length // 4, length // 10)]
        together = packed(draft, prompts).nbytes
        alone = sum(packed(draft, [prompt]).nbytes for prompt in prompts)
        rows.append({"length": length, "packed": together, "one by one": alone})
    return rows


def page(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    steps = [
        [
            str(row["length"]),
            row["case"],
            f"{1e3 * row['seconds']:.2f}",
            f"{row['ratio'][1]:.2f} ({row['ratio'][0]:.2f} to {row['ratio'][2]:.2f})",
        ]
        for row in report["steps"]
    ]
    memory = [
        [
            str(row["length"]),
            f"{row['packed'] / 2**20:.1f}",
            f"{row['one by one'] / 2**20:.1f}",
            f"{row['packed'] / row['one by one']:.3f}",
        ]
        for row in report["memory"]
    ]
    mixing = [[name, f"{1e3 * value:.2f}"] for name, value in report["mixing"].items()]
    return "\n".join(
        [
            "# Steps of one draft with several views",
            "",
            environment_line(report["environment"]),
            "",
            "## Prediction",
            "",
            report["prediction"],
            "",
            "## A step",
            "",
            "Ratios are to M's step in the same repeat: median (quartiles).",
            "",
            *markdown_table(["tokens of M", "views", "ms", "ratio"], steps, {0, 1}),
            "",
            f"## Mixing over {VOCABULARY:,} ids",
            "",
            *markdown_table(["", "ms"], mixing),
            "",
            "## Keys and values, MiB",
            "",
            *markdown_table(["tokens of M", "packed", "one by one", "ratio"], memory),
            "",
        ]
    )

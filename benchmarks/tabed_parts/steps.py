"""What a draft's step costs with one view and with several, in time and in memory."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from shared import Benchmark, Report, backbones, grid, interleaved_seconds, table

from draftlens import load
from draftlens.core.sampling import SamplingRule
from draftlens.core.sequence import Batch, History
from draftlens.core.tree import chain
from draftlens.drafting.draft_prompt import prefilled
from draftlens.drafting.draft_rows import levels
from draftlens.methods.tabed.view_rows import ViewRows
from draftlens.methods.tabed.weights import log_mixture
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt

LENGTHS = (1000, 16000)
"""Tokens of the view that reads everything."""
TEXT = 40
"""Tokens of the view that reads the words only."""
VOCABULARY = 150_000
STEPS = 4
"""Steps that are timed together: the levels of a chain of five after its first."""


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


def measure(args: argparse.Namespace) -> Report:
    """Steps, mixing and memory."""
    _, draft = backbones(load(device="cpu"))
    steps = [row for length in LENGTHS for row in step_rows(draft, length, args.repeats)]
    return {"steps": steps, "mixing": mixing_seconds(args.repeats), "memory": memory_rows(draft)}


def page(report: Report) -> list[str]:
    """Steps, mixing and memory."""
    steps = {
        "tokens of M": "{length}",
        "views": "{case}",
        "ms": "{seconds:.2ms}",
        "ratio": "{ratio[1]:.2f} ({ratio[0]:.2f} to {ratio[2]:.2f})",
    }
    memory: dict[str, Any] = {
        "tokens of M": "{length}",
        "packed": "{packed:.1MiB}",
        "one by one": "{one by one:.1MiB}",
        "ratio": lambda row: f"{row['packed'] / row['one by one']:.3f}",
    }
    mixing = report["mixing"]
    return [
        "## A step",
        "Ratios are to M's step in the same repeat: median (quartiles).",
        table(report["steps"], steps),
        f"## Mixing over {VOCABULARY:,} ids",
        grid("", mixing, ["ms"], lambda name, _: f"{1e3 * mixing[name]:.2f}"),
        "## Keys and values, MiB",
        table(report["memory"], memory),
    ]


BENCHMARK = Benchmark(
    "tabed_steps",
    __doc__,
    "Steps of one draft with several views",
    measure,
    page,
    {"--repeats": 15},
)

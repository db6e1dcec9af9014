"""Ways to read a prompt that `fidelity` compares: prefills of draftlens, and baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from draftlens_lab.bench.lossy.answer import answer_lossily
from draftlens_lab.bench.lossy.fastv import FastV
from draftlens_lab.plugins.spava_ablation import SpavaAblation
from draftlens_lab.plugins.star import StarPrefill

from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prepared, Prompt
from draftlens.prefill.base import PrefillReading, make_prefill
from draftlens.prefill.spava.blocks import Share
from draftlens.prefill.spava.config import SpavaPrefill
from draftlens.prefill.spava.hosts import Hosts, hosts_of, set_hosts
from spava_parts.baselines.masked import MaskedAttention, Rule
from spava_parts.baselines.slowfast import SlowFast
from spava_parts.baselines.sparge import Sparge
from spava_parts.baselines.xattention import XAttention
from spava_parts.formulas import causal, pairs
from spava_parts.spoken import Read


@dataclass(frozen=True)
class Costed:
    """A prompt that was read.

    Args:
        read: its cache.
        share: FLOPs of attention in the language model, in relation to the full prefill.
    """

    read: Read
    share: float


Way = Callable[[Backbone, Prompt], Costed]
"""Reads a prompt."""

Answerer = Callable[[Backbone, Prepared, Prompt], list[int]]
"""Reads a prompt and answers it greedily: the tokens."""


def exact(choice: str) -> Way:
    """An exact prefill of draftlens, by all hosts of the backbone."""
    prefill = make_prefill(choice)

    def read(backbone: Backbone, prompt: Prompt) -> Costed:
        cache = backbone.new_cache(prompt, 1)
        output = prefill.run(backbone, PrefillReading(prompt, cache))
        return Costed(Read(prompt, cache, output.logits[0, -1]), 1.0)

    return read


def in_blocks(prefill: SpavaPrefill | SpavaAblation | StarPrefill) -> Way:
    """An approximate prefill of draftlens by one process."""

    def read(backbone: Backbone, prompt: Prompt) -> Costed:
        cache = backbone.new_cache(prompt, 1)
        output = prefill.run(backbone, PrefillReading(prompt, cache))
        (row,) = prefill.rows(prompt)
        share = 1.0
        if row.blocks is not None:
            share = pairs(Share(row.blocks, 0, 1)) / causal(prompt.lengths[0])
        return Costed(Read(prompt, cache, output.logits[0, -1]), share)

    return read


def by_hosts(way: Way, hosts: Hosts) -> Way:
    """The same way by several processes."""

    def read(backbone: Backbone, prompt: Prompt) -> Costed:
        before = hosts_of(backbone)
        set_hosts(backbone, hosts)
        try:
            return way(backbone, prompt)
        finally:
            set_hosts(backbone, before)

    return read


def masked(rule: Rule) -> Way:
    """Exact attention under a mask of blocks."""

    def read(backbone: Backbone, prompt: Prompt) -> Costed:
        cache = backbone.new_cache(prompt, 1)
        attention = MaskedAttention(rule, prompt.lengths)
        with backbone.alone():
            logits = backbone.prefill(prompt, cache, attention)
        return Costed(Read(prompt, cache, logits[0, -1]), attention.flops / attention.dense_flops)

    return read


def slowfast(backbone: Backbone, prompt: Prompt) -> Costed:
    """Fewer features, read as by the full prefill."""
    pooled = SlowFast().pooled(prompt)
    cache = backbone.new_cache(pooled, 1)
    logits = backbone.prefill(pooled, cache)
    share = causal(pooled.lengths[0]) / causal(prompt.lengths[0])
    return Costed(Read(pooled, cache, logits[0, -1]), share)


def spava(**options: Any) -> Way:
    """SPAVA with the paper's choice of passing keys, if no other is among the options."""
    return in_blocks(SpavaPrefill(**{"select": "query", **options}))


def fastv(backbone: Backbone, prepared: Prepared, prompt: Prompt) -> list[int]:
    """The answer of FastV, which drops half of the visual tokens behind layer 2."""
    return answer_lossily(backbone, prepared, prompt, FastV(2, 0.5)).tokens


ANSWERERS: Mapping[str, Answerer] = {"fastv": fastv}
"""Ways whose answers alone are compared."""

WAYS: Mapping[str, Way] = {
    "spava": spava(),
    "spava, sampled keys": spava(select="sampled"),
    "spava, 4 blocks": spava(blocks=4),
    "spava, 64 blocks": spava(blocks=64),
    "spava, rounded to 128": in_blocks(SpavaAblation(rounding=128)),
    "spava, no pool": in_blocks(SpavaAblation(pool=1)),
    "random": in_blocks(SpavaAblation(select="random")),
    "uniform": in_blocks(SpavaAblation(select="uniform")),
    "no anchor": spava(anchor=0),
    "nothing passed": spava(passing=0),
    "neither": spava(anchor=0, passing=0),
    "star": in_blocks(StarPrefill()),
    "8 blocks, passing n/64": spava(blocks=8, passing="n/64"),
    "xattention": masked(XAttention()),
    "spargeattn": masked(Sparge()),
    "slowfast": slowfast,
    "passing n/256": spava(passing="n/256"),
    "passing n/64": spava(passing="n/64"),
    "passing n/32": spava(passing="n/32"),
    "anchor n/128": spava(anchor="n/128"),
    "anchor n/32": spava(anchor="n/32"),
    "anchor n/16": spava(anchor="n/16"),
}
"""All by name. 4, 16 and 64 blocks are 2, 8 and 32 hosts. "8 blocks, passing n/64" has the sizes of
APB at 8 hosts, whose retaining heads are trained: here the question chooses, so it is no APB."""

NUM_EXTRAS = 10
"""Prompts of a cell that `EXTRAS` read."""

COMPARED = (
    "spava",
    "random",
    "uniform",
    "no anchor",
    "nothing passed",
    "star",
    "xattention",
    "spargeattn",
    "slowfast",
)

SETS: Mapping[str, tuple[str, ...]] = {
    "compared": COMPARED,
    "long": ("spava", "random", "nothing passed", "star", "xattention", "spargeattn", "slowfast"),
    "choices": ("spava", "spava, sampled keys", "random"),
    "ring": (),
    "needles": ("spava", "random", "nothing passed", "star"),
    "order": (
        "spava",
        "spava, 4 blocks",
        "spava, 64 blocks",
        "random",
        "nothing passed",
        "star",
        "xattention",
        "spargeattn",
        "fastv",
    ),
    "count": ("spava", "random", "no anchor", "nothing passed"),
    "retrieve": ("spava", "slowfast"),
    "lengths": (
        "passing n/256",
        "spava",
        "passing n/64",
        "passing n/32",
        "nothing passed",
        "no anchor",
        "anchor n/128",
        "anchor n/32",
        "anchor n/16",
    ),
}
"""Names of the ways that a cell compares."""

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "compared": (
        "8 blocks, passing n/64",
        "neither",
        "spava, 4 blocks",
        "spava, 64 blocks",
        "spava, rounded to 128",
        "spava, no pool",
        "fastv",
    ),
}
"""Names of further ways, on the first prompts of a cell at 1,025 visual tokens."""


def names_of(kind: str, index: int, visual: int) -> tuple[str, ...]:
    """Names of the ways to read one prompt.

    Args:
        kind: of `SETS`.
        index: of the prompt in its cell.
        visual: number of its visual tokens.
    """
    if index >= NUM_EXTRAS or visual > 1025:
        return SETS[kind]
    return (*SETS[kind], *EXTRAS.get(kind, ()))

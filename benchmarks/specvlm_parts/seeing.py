"""What a draft makes of an answer when it sees only some of the picture, in one pass: no decoding
needed.

A greedy draft's guesses are the ranks of the answer's own tokens in its scores, so one
teacher-forced forward says how many tokens each round of any tree would emit. `check` compares that
with the engine's own count.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from shared import given
from torch import Tensor

from draftlens.api import Engine, Inputs
from draftlens.attention import Probe
from draftlens.core.tree import EAGLE_PATHS, ROOT, Topology, chain, from_paths
from draftlens.draft.base import Seen
from draftlens.draft.pruned import Pruning
from draftlens.evaluate.ranks import draft_ranks
from draftlens.methods import SpecVLM, from_dict
from draftlens.models.backbone import Backbone
from draftlens.models.prompt import Prepared, Prompt
from draftlens.world.samples import Sample

TREES = {"chain": chain(5), "tree": from_paths(EAGLE_PATHS)}


@dataclass(frozen=True)
class Scene:
    """One clip as a session sees it behind its prefill, and what the target then says.

    Args:
        inputs: of target and draft.
        prompt: the draft's, unpruned.
        seen: what the target made of its own.
        prepared: the target's call.
        answer: its greedy answer, ids.
    """

    inputs: Inputs
    prompt: Prompt
    seen: Seen
    prepared: Prepared
    answer: list[int]


@torch.inference_mode()
def scene(engine: Engine, sample: Sample, frames: int, max_new_tokens: int) -> Scene:
    """A sample, answered by plain decoding and read once with a probe."""
    target, draft = engine.target.backbone, engine.draft.backbone  # type: ignore[union-attr]
    inputs = given(engine, sample, frames)
    result = engine.answer(
        inputs, method="plain", max_new_tokens=max_new_tokens, do_sample=False
    ).run()
    prepared = target.prepare(inputs.target, max_new_tokens=1, do_sample=False)
    own = target.encode(prepared)
    probe, cache = Probe(own.visual, own.lengths), target.new_cache(own, 1)
    target.prefill(own, cache, probe)
    seen = Seen(
        own, cache, probe.result(), lambda _: nullcontext(), lambda *_: None, tuple(probe.by_layer)
    )
    prompt = draft.encode(draft.prepare(inputs.draft or inputs.target, max_new_tokens=1))
    return Scene(inputs, prompt, seen, prepared, result.tokens[0])


def ranks(engine: Engine, shown: Scene, pruning: Pruning) -> list[int]:
    """Rank of each token of the answer behind its first, in the eyes of the pruned draft."""
    draft = engine.draft.backbone  # type: ignore[union-attr]
    smaller, _ = pruning.apply(shown.prompt, shown.seen)
    return draft_ranks(
        draft, smaller, [shown.answer], shown.prepared, engine.target.backbone.vocab_size
    )[0]


def passes(ranked: Sequence[int], topology: Topology) -> int:
    """Verification passes over an answer whose tokens a draft ranks so, 1 for its best guess."""
    at = count = 0
    while at < len(ranked):
        at, count = at + reach(ranked[at:], topology) + 1, count + 1
    return count


def reach(ranked: Sequence[int], topology: Topology) -> int:
    """How deep a tree of the draft's best guesses follows the answer."""
    node, depth = ROOT, 0
    while depth < len(ranked) and ranked[depth] <= len(children := topology.children.get(node, ())):
        node, depth = children[ranked[depth] - 1], depth + 1
    return depth


def pruning_of(settings: dict[str, Any]) -> Pruning:
    """How method `specvlm` with these settings prunes."""
    method = from_dict({"method": "specvlm", **settings})
    assert isinstance(method, SpecVLM)
    return method.pruning


def check(engine: Engine, shown: Scene, settings: dict[str, Any], max_new_tokens: int) -> None:
    """Asserts that the engine itself says the same tokens in as many passes as `passes` counts."""
    ranked = ranks(engine, shown, pruning_of(settings))
    for tree, topology in TREES.items():
        method = {"method": "specvlm", "tree": "eagle" if tree == "tree" else None, **settings}
        result = engine.answer(
            shown.inputs, method=method, max_new_tokens=max_new_tokens, do_sample=False
        ).run()
        assert result.tokens == [shown.answer], f"{settings}: another answer"
        assert result.stats.passes == passes(ranked, topology), (
            f"{settings}, {tree}: another count of passes"
        )


@torch.inference_mode()
def attention_to(backbone: Backbone, inputs: dict[str, Any], answer: Sequence[int]) -> Tensor:
    """How much the tokens of an answer look at each token of their prompt, float32 ``[L]``: known
    only afterwards."""
    length = inputs["input_ids"].shape[1]
    ids = torch.cat([inputs["input_ids"], torch.tensor([answer])], 1)
    prompt = backbone.encode(
        backbone.prepare(
            {**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}, max_new_tokens=1
        )
    )
    probe = Probe(prompt.visual, prompt.lengths)
    probe.readers = [readers[readers >= length - 1] for readers in probe.readers]
    backbone.prefill(prompt, backbone.new_cache(prompt, 1), probe)
    return probe.result()[0, :length]

"""A draft's ranks of an answer when it sees a part of the visual tokens, without decoding.

A greedy draft proposes its highest ranked tokens, so one teacher-forced forward determines how many
tokens each pass of any tree emits (`draftlens_lab.measure.rounds`). `check` compares this with the
engine's own count.

A second question is asked in a chat: the target's own answer is in front of it, and the prompt
cache has the first turn, so that only the tokens after it are read and only their attention is
measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from draftlens_lab.evaluate.parts import part_samples
from draftlens_lab.evaluate.ranks import draft_ranks
from draftlens_lab.measure.rounds import accepted_per_pass
from draftlens_lab.world.samples import Sample
from shared import backbones, caption_sample, encoded_prompt, sample_inputs
from torch import Tensor

from draftlens.core.prefill_readings import ATTENTION, FeatureSpec
from draftlens.core.tree import EAGLE_PATHS, Topology, chain, from_paths
from draftlens.decoding.plan import TargetContext
from draftlens.drafting.pruning import Pruning
from draftlens.engine import Engine
from draftlens.inputs import Inputs
from draftlens.methods.base import from_dict
from draftlens.methods.specvlm.config import SpecVLM
from draftlens.models.adapter import Backbone
from draftlens.models.attention.scores import AttentionProbe
from draftlens.models.prompt import Prepared, Prompt
from draftlens.models.prompt_cache import PromptCache
from draftlens.prefill.base import FullPrefill, PrefillReading

Settings = dict[str, Any]

PAPER = {"method": "specvlm", "pruner": "specvlm"}
"""The method with the paper's choice of visual tokens."""

TREES = {"chain": chain(5), "tree": from_paths(EAGLE_PATHS)}

TREE_OPTIONS: dict[str, dict[str, Any]] = {
    "chain": {"num_speculative_tokens": 5},
    "tree": {"tree": "eagle"},
}
"""Options of method specvlm for each of TREES."""


KINDS = {
    "caption": "captions of held-out clips",
    "focus": "focus questions about held-out reels",
    "chat": "second questions about held-out reels",
}
"""What is asked, and its name in reports."""

SEED = 7
"""Seed of questions; `draftlens evaluate` uses other scenes."""

CHAT = ""
"""Namespace of the turns before a question in the prompt cache."""

CACHE_BYTES = 1 << 31
"""Size of the prompt cache, that of `Engine.chat`."""


def samples_of(kind: str, number: int, frames: int, calibration: bool = False) -> list[Sample]:
    """Held-out samples with one request each.

    Args:
        kind: one of `KINDS`.
        number: number of samples.
        frames: number of frames; reels have 16 or more.
        calibration: whether to return those that only calibration uses.
    """
    if kind == "caption":
        first = 9000 if calibration else 0
        return [caption_sample(first + index) for index in range(number)]
    return part_samples(kind, number, SEED + calibration, frames)


@dataclass(frozen=True)
class Scene:
    """One clip after the target's prefill, with the target's answer.

    Args:
        inputs: for target and draft.
        prompt: the draft's, unpruned.
        context: the target's prefill, as a drafter receives it.
        prepared: the target's call.
        answer: ids of its greedy answer.
        earlier: prompts of the turns before, in order.
    """

    inputs: Inputs
    prompt: Prompt
    context: TargetContext
    prepared: Prepared
    answer: list[int]
    earlier: Sequence[Inputs] = ()


@torch.inference_mode()
def read_scene(
    engine: Engine,
    sample: Sample,
    frames: int,
    max_new_tokens: int,
    spec: FeatureSpec = ATTENTION,
) -> Scene:
    """Answer a sample by plain decoding, and prefill its prompt with these readings, after the
    turns before its question if there are any."""
    target, draft = backbones(engine)
    sample, earlier = converse(engine, sample, frames, max_new_tokens)
    inputs = sample_inputs(engine, sample, frames)
    prepared = target.prepare(inputs.target, max_new_tokens=1, do_sample=False)
    namespace = CHAT if earlier else None
    target_prompt = replace(target.encode(prepared), namespace=namespace)
    cache = target.new_cache(target_prompt, 1)
    output = FullPrefill().run(target, PrefillReading(target_prompt, cache, spec))
    context = TargetContext(target_prompt, cache, readings=output.readings)
    prompt = encoded_prompt(draft, inputs.draft or inputs.target)
    answer = greedy_answer(engine, inputs, max_new_tokens, namespace, method="plain")
    return Scene(inputs, prompt, context, prepared, answer, earlier)


def greedy_answer(
    engine: Engine,
    inputs: Inputs,
    max_new_tokens: int,
    namespace: str | None = CHAT,
    method: Any = None,
) -> list[int]:
    """Ids of the target's greedy answer, by the engine's own method if none is given."""
    stream = engine.answer(
        inputs,
        method=method,
        namespace=namespace,
        max_new_tokens=max_new_tokens,
        do_sample=False,
    )
    return stream.run().tokens[0]


def converse(
    engine: Engine, sample: Sample, frames: int, max_new_tokens: int
) -> tuple[Sample, list[Inputs]]:
    """Ask the questions before the last one with an empty prompt cache, as a chat does.

    Returns:
        The sample with the target's answers to them, and their prompts.
    """
    engine.attach(PromptCache(CACHE_BYTES))
    turns = list(sample.turns)
    prompts = []
    for place in range(len(turns) - 1):
        begun = replace(sample, turns=tuple(turns[: place + 1]))
        prompts.append(sample_inputs(engine, begun, frames))
        tokens = greedy_answer(engine, prompts[-1], max_new_tokens)
        turns[place] = replace(turns[place], marked_answer=engine.text_decoder(tokens))
    return replace(sample, turns=tuple(turns)), prompts


def ranks(engine: Engine, scene: Scene, pruning: Pruning) -> list[int]:
    """Rank of each token of the answer after its first in the scores of the pruned draft."""
    target, draft = backbones(engine)
    pruned = pruning.apply(scene.prompt, scene.context).prompt
    return draft_ranks(draft, pruned, [scene.answer], scene.prepared, target.vocab_size)[0]


def passes(answer_ranks: Sequence[int], tree: Topology) -> int:
    """Number of verification passes over an answer with these ranks of its tokens."""
    return len(accepted_per_pass(answer_ranks, tree))


def pruning_of(settings: Settings) -> Pruning:
    """The pruning of the paper, or of other settings."""
    method = from_dict({**PAPER, **settings})
    assert isinstance(method, SpecVLM)
    return method.pruning


def engine_passes(
    engine: Engine, scene: Scene, settings: Settings, tree: str, max_new_tokens: int
) -> int:
    """Number of verification passes of the engine itself.

    Args:
        engine: the models.
        scene: the prompt and its answer.
        settings: of method `specvlm`.
        tree: one of TREES.
        max_new_tokens: longest answer in tokens.

    Raises:
        AssertionError: the engine's answer differs from the scene's.
    """
    method = {**PAPER, **TREE_OPTIONS[tree], **settings}
    # An earlier call has left the question itself in the prompt cache.
    engine.attach(PromptCache(CACHE_BYTES))
    for inputs in scene.earlier:
        greedy_answer(engine, inputs, max_new_tokens)
    result = engine.answer(
        scene.inputs,
        method=method,
        namespace=CHAT if scene.earlier else None,
        max_new_tokens=max_new_tokens,
        do_sample=False,
    ).run()
    assert result.tokens == [scene.answer], f"{settings}: another answer"
    return result.stats.passes


def check(engine: Engine, scene: Scene, settings: Settings, max_new_tokens: int) -> None:
    """Compare the number of passes that follows from the draft's ranks with the engine's.

    Raises:
        AssertionError: they differ, or the answers do.
    """
    answer_ranks = ranks(engine, scene, pruning_of(settings))
    for name, tree in TREES.items():
        counted = engine_passes(engine, scene, settings, name, max_new_tokens)
        assert counted == passes(answer_ranks, tree), f"{settings}, {name}: other passes"


def attention_of_answer(
    backbone: Backbone, inputs: Mapping[str, Any], answer: Sequence[int]
) -> Tensor:
    """Attention of the tokens of an answer to each token of their prompt, which is known only after
    decoding.

    Args:
        backbone: the model.
        inputs: the processor's output, of one row of L tokens.
        answer: ids.

    Returns:
        float32 ``[L]``.
    """
    length = inputs["input_ids"].shape[1]
    own = torch.tensor([answer], device=inputs["input_ids"].device)
    ids = torch.cat([inputs["input_ids"], own], 1)
    # Types of tokens: those of the answer are words.
    longer = {
        name: torch.cat([value, torch.zeros_like(own, dtype=value.dtype)], 1)
        for name, value in inputs.items()
        if isinstance(value, Tensor) and value.shape == (1, length)
    }
    whole = {**inputs, **longer, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return attention_from(backbone, whole, length - 1)[:length]


@torch.inference_mode()
def attention_from(backbone: Backbone, inputs: Mapping[str, Any], first: int) -> Tensor:
    """Attention of a prompt's tokens from index `first` on to each of its tokens, float32 ``[L]``.

    The inputs are the processor's output for one row.
    """
    prompt = encoded_prompt(backbone, inputs)
    probe = AttentionProbe(prompt.visual, prompt.lengths)
    probe.readers = [readers[readers >= first] for readers in probe.readers]
    backbone.prefill(prompt, backbone.new_cache(prompt, 1), probe)
    return probe.result()[0]

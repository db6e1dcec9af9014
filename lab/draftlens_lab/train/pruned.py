"""Drafts that learn from pruned prompts, as SpecVLM shows them in use.

The pruner keeps the visual tokens that it keeps in use (`Pruning`), guided by the target's reading
of the prompt before the answer. They are taken between the draft's embeddings and its language
model, and stay at their positions. The draft's own forward runs, so that wrappers of it work.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from draftlens.decoding.plan import TargetContext
from draftlens.drafting.pruning import Pruning
from draftlens.models.adapter import Backbone
from draftlens.models.inspection import model_parts
from draftlens.models.kv_cache import KVCache
from draftlens.models.model_state import capture_arguments, lock_of
from draftlens.models.prompt import Prompt, build_prompt
from draftlens.models.prompt_subset import gather
from draftlens.models.support import represents, without_cache
from draftlens.models.visual_grid import read_layout
from draftlens.prefill.base import FullPrefill, PrefillReading
from draftlens.pruning import Pruner
from draftlens_lab.train.draws import Draw
from draftlens_lab.train.labels import IGNORE


@dataclass(frozen=True)
class RowPruning:
    """How the rows of a batch are pruned.

    Args:
        ratios: share of each row's visual tokens that are removed.
        prompts: tokens of each row before the answer whose prompt guides the pruner.
    """

    ratios: list[float]
    prompts: list[int]


def select_answers(labels: Tensor, draws: Sequence[Draw]) -> RowPruning:
    """Set the labels ``[B, L]`` of answers that are not drawn to `IGNORE`, in place.

    A row of which all answers are trained, and which is not pruned, has the prompt of its last.
    """
    prompts = []
    for row, draw in zip(labels, draws, strict=True):
        spans = answer_spans(row)
        begin, end = spans[-1 if draw.answer is None else draw.answer]
        if draw.answer is not None:
            row[:begin] = IGNORE
            row[end:] = IGNORE
        prompts.append(begin)
    return RowPruning([draw.ratio for draw in draws], prompts)


def answer_spans(labels: Tensor) -> list[tuple[int, int]]:
    """Begin and end of each answer in labels ``[L]``."""
    is_answer = torch.nn.functional.pad(labels != IGNORE, (1, 1)).int().diff()
    begins = (is_answer == 1).nonzero()[:, 0].tolist()
    ends = (is_answer == -1).nonzero()[:, 0].tolist()
    return list(zip(begins, ends, strict=True))


@dataclass(frozen=True)
class PromptPruning:
    """Chooses the tokens that a draft reads in training.

    Args:
        guide: the target, for a pruner with readings of its prefill; else None.
    """

    pruner: Pruner
    guide: Backbone | None

    @torch.no_grad()
    def kept(
        self,
        draft: Any,
        inputs: Mapping[str, Any],
        rows: RowPruning,
        guide_inputs: Mapping[str, Any] | None = None,
        guide_rows: RowPruning | None = None,
    ) -> list[Tensor]:
        """Per row the indices of the tokens that the draft reads, int64 ``[K]``.

        Args:
            inputs: of the draft, padded on the right.
            guide_inputs: of the guide; None if the draft's serve both.
            guide_rows: their prompts; None for `rows`.
        """
        prompt = read_prompt(draft, inputs)
        context = self._context(prompt, guide_inputs or inputs, guide_rows or rows)
        return [
            Pruning(self.pruner, ratio).keep_in_row(row, prompt, context)
            for row, ratio in enumerate(rows.ratios)
        ]

    def _context(
        self, prompt: Prompt, inputs: Mapping[str, Any], rows: RowPruning
    ) -> TargetContext:
        if self.guide is None:
            return TargetContext(prompt, KVCache(0, len(prompt.lengths), 0))
        guide_prompt = self.guide.encode(
            self.guide.prepare_prompt(cut(cast(inputs, self.guide.model.dtype), rows.prompts))
        )
        cache = self.guide.new_cache(guide_prompt, 0)
        reading = PrefillReading(guide_prompt, cache, self.pruner.readings)
        output = FullPrefill().run(self.guide, reading)
        return TargetContext(guide_prompt, cache, readings=output.readings)


def read_prompt(model: Any, inputs: Mapping[str, Any]) -> Prompt:
    """What a model's language model is called with for these inputs, in training or not."""
    decoder, _, embed = model_parts(model, type(model).__name__)[:3]
    pictures = represents(model.config, "image", inputs["input_ids"])
    videos = represents(model.config, "video", inputs["input_ids"])
    visual = pictures | videos
    lock = lock_of(model)
    with lock.exclusive():
        arguments = capture_arguments(lock, model, decoder, {**inputs, "use_cache": False})
    prompt = build_prompt(type(model).__name__, without_cache(arguments), embed, visual)
    return replace(prompt, layout=read_layout(model, inputs, visual, videos & ~pictures))


@contextmanager
def reading_only(model: Any, input_ids: Tensor, kept: Sequence[Tensor]) -> Iterator[None]:
    """Let the language model read only these tokens of each row, at their positions.

    Args:
        input_ids: int64 ``[B, L]``, padded on the right.
        kept: indices int64 ``[K]`` of each row. Later rows of hidden states and logits belong to
            them, padded on the right to the longest.
    """
    decoder, _, embed = model_parts(model, type(model).__name__)[:3]
    visual = represents(model.config, "image", input_ids)
    visual |= represents(model.config, "video", input_ids)

    def prune(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            kwargs = {"input_ids": args[0], **kwargs}
        arguments = without_cache(kwargs)
        arguments.pop("logits_to_keep", None)  # some models pass theirs on
        prompt = gather(build_prompt(type(model).__name__, arguments, embed, visual), kept)
        lengths = torch.tensor(prompt.lengths, device=input_ids.device)
        # Without a mask, transformers takes gaps between positions for the ends of packed rows.
        is_token = torch.arange(max(prompt.lengths), device=input_ids.device) < lengths[:, None]
        pruned = {
            **arguments,
            **prompt.extra,
            "inputs_embeds": prompt.embeds,
            "position_ids": prompt.position_ids,
            "attention_mask": is_token.long(),
        }
        pruned.pop("input_ids", None)
        return (), pruned

    with lock_of(model).hooked(decoder, prune, after=False):
        yield


def taken(labels: Tensor, kept: Sequence[Tensor]) -> Tensor:
    """The labels ``[B, L]`` of the kept tokens, `IGNORE` at padding."""
    rows = [row[indices.to(row.device)] for row, indices in zip(labels, kept, strict=True)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORE)


def cut(inputs: Mapping[str, Any], lengths: Sequence[int]) -> dict[str, Any]:
    """A processor's output for the first tokens of each row."""
    ids = inputs["input_ids"]
    longest = max(lengths)
    shorter = dict(inputs)
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.shape == ids.shape:
            shorter[name] = value[:, :longest]
    ends = torch.tensor(lengths, device=ids.device)[:, None]
    mask = torch.arange(longest, device=ids.device) < ends
    return {**shorter, "attention_mask": mask.long()}


def cast(inputs: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The same inputs with floating-point tensors of this type."""
    changed = dict(inputs)
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            changed[name] = value.to(dtype)
    return changed

"""From logits to the scores that decide a token: the only home of temperature, top-k, top-p and
their kin.

The processors themselves are those of transformers, in the order in which `generate` prepares them,
so that every option means what it means there. This file applies them at every node of a draft
tree, each with its own history, and adds the position-keyed noise that makes draft and target draw
alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation import logits_process as hf

from draftlens.core.errors import ConfigError

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]
Histories = Callable[[], Iterable[tuple[int, list[int], Tensor]]]
"""Groups of nodes with histories of one length: (row, nodes, token ids int64 [len(nodes),
length])."""

HISTORY_FREE = (
    hf.TemperatureLogitsWarper,
    hf.TopKLogitsWarper,
    hf.TopPLogitsWarper,
    hf.MinPLogitsWarper,
    hf.TypicalLogitsWarper,
    hf.EpsilonLogitsWarper,
    hf.EtaLogitsWarper,
    hf.InfNanRemoveLogitsProcessor,
    hf.SuppressTokensLogitsProcessor,
    hf.LogitNormalization,
)
"""Processors that look at the scores alone: all nodes of all rows go through them in one call."""

ROW_BLIND = (
    hf.MinLengthLogitsProcessor,
    hf.MinNewTokensLengthLogitsProcessor,
    hf.RepetitionPenaltyLogitsProcessor,
    hf.NoRepeatNGramLogitsProcessor,
    hf.SequenceBiasLogitsProcessor,
    hf.NoBadWordsLogitsProcessor,
    hf.ForcedBOSTokenLogitsProcessor,
    hf.ForcedEOSTokenLogitsProcessor,
    hf.ExponentialDecayLengthPenalty,
    hf.SuppressTokensAtBeginLogitsProcessor,
)
"""Processors that read histories but treat all rows alike: nodes of one length go through them
together."""

STATEFUL = (
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "SynthIDTextWatermarkLogitsProcessor",
    "WhisperTimeStampLogitsProcessor",
)
"""Processors that keep state from call to call, so a rejected guess would change what they do
next."""


def check_processors(processors: Sequence[LogitsProcessor]) -> None:
    """Refuse processors that cannot be asked about a guess.

    Raises:
        ConfigError: one keeps state between calls.
    """
    for processor in processors:
        name = type(processor).__name__
        if name in STATEFUL:
            raise ConfigError(
                f"{name} keeps state from token to token, so guesses cannot be checked with it"
            )


@dataclass(frozen=True)
class SamplingRule:
    """How a distribution becomes a token; one object serves draft and target.

    Args:
        processors: transformers logits processors, in order.
        do_sample: draw (true) or take the best (false).
        rule: `"coupled"` or `"rejection"`; see `ops/verify.py`.
        seed: of the noise; the same seed gives the same tokens.
    """

    processors: tuple[LogitsProcessor, ...] = ()
    do_sample: bool = False
    rule: str = "coupled"
    seed: int = 0

    @property
    def rejects(self) -> bool:
        """Whether guesses are accepted by chance (the papers' rule) instead of by equality."""
        return self.do_sample and self.rule == "rejection"

    def process(self, logits: Tensor, histories: Histories) -> Tensor:
        """Scores after all processors, float32 ``[B, N, V]``, from logits ``[B, N, V]`` of any
        float dtype."""
        if not self.processors:
            return logits
        scores, groups = logits.float(), None
        for processor in self.processors:
            if type(processor) in HISTORY_FREE:
                # None of these reads the ids; they only want a tensor in their place.
                scores = processor(
                    scores.new_empty(0, dtype=torch.long), scores.flatten(0, 1)
                ).view_as(scores)
                continue
            groups = list(histories()) if groups is None else groups
            scores = scores.clone()
            for row, nodes, ids in groups:
                # A draft may live elsewhere than the target, whose device the processors are made
                # for.
                asked = _ask(
                    processor, ids, scores[row, nodes].to(ids.device), row, scores.shape[0]
                )
                scores[row, nodes] = asked.to(scores.device)
        return scores

    def ranking(self, scores: Tensor, rows: Tensor, steps: Tensor) -> Tensor:
        """What to take the argmax of: the scores, plus Gumbel noise if tokens are drawn; shape
        ``[B, N, V]``.

        Args:
            scores: processed scores ``[B, N, V]``.
            rows: row numbers int64 ``[B]``; part of the noise's key.
            steps: index of the token to choose in its row's answer, int64 ``[B, N]``; the rest of
                the key.
        """
        if not self.do_sample:
            return scores
        noise = gumbel(self.seed, rows[:, None], steps, scores.shape[-1])
        return torch.log_softmax(scores.double(), -1) + noise.to(scores.device)


def _ask(processor: Any, ids: Tensor, scores: Tensor, row: int, rows: int) -> Tensor:
    """What a processor makes of some nodes of one row (ids ``[n, length]``, scores ``[n, V]``) out
    of `rows`."""
    if type(processor) is hf.RepetitionPenaltyLogitsProcessor and isinstance(
        processor.prompt_ignore_length, Tensor
    ):
        padding = processor.prompt_ignore_length[row].expand(
            len(ids)
        )  # of all rows, so this one's for each node
        processor = hf.RepetitionPenaltyLogitsProcessor(processor.penalty, padding)
    if type(processor) in ROW_BLIND:
        alike: Tensor = processor(ids, scores)
        return alike
    # Any other may tell rows apart by index, so each node is asked about as `generate` would: in
    # its row's place.
    asked = zip(ids, scores, strict=True)
    return torch.stack([processor(i.repeat(rows, 1), s.repeat(rows, 1))[row] for i, s in asked])


def generator_of(seed: int) -> torch.Generator:
    """A CPU generator for any Python int; its low 63 bits count."""
    return torch.Generator().manual_seed(seed & (2**63 - 1))


def gumbel(seed: int, rows: Tensor, steps: Tensor, vocab: int) -> Tensor:
    """Standard Gumbel noise that is a function of (seed, row, step, token id) alone.

    ``argmax(log p + gumbel)`` is a draw from p. Because nothing but the key enters, draft and
    target draw with the same noise wherever they run, and a token does not depend on how many were
    guessed before it.

    Args:
        seed: any Python int; its low 63 bits count.
        rows, steps: int64, broadcast against each other to shape S.
        vocab: V.

    Returns:
        float64 ``[*S, V]``. A vocabulary of another size shares its values at the ids both have.
    """
    ids = torch.arange(vocab, device=steps.device)
    key = _mix(_mix(_mix(torch.as_tensor(seed & (2**63 - 1), device=steps.device)) + rows) + steps)
    bits = _mix(key[..., None] + ids)
    # 52 bits and a half are exact in a double, so the ends 0 and 1, where the noise is infinite,
    # are never reached.
    uniform = (((bits >> 12) & (2**52 - 1)).double() + 0.5) * 2.0**-52
    return -torch.log(-torch.log(uniform))


def _mix(x: Tensor) -> Tensor:
    """The finalizer of SplitMix64 (Steele et al. 2014) on int64, whose products wrap as unsigned
    ones do."""
    x = x + -0x61C8864680B583EB
    x = (x ^ ((x >> 30) & (2**34 - 1))) * -0x40A7B892E31B1A47
    x = (x ^ ((x >> 27) & (2**37 - 1))) * -0x6B2FB644ECCEEE15
    return x ^ ((x >> 31) & (2**33 - 1))

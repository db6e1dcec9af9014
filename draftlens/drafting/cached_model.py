"""A model with a cache along the accepted path, so that no accepted token is forwarded twice."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from draftlens.core import tree as trees
from draftlens.core.batch import Batch
from draftlens.core.proposal import Verdict
from draftlens.core.rows import replace_by_last, without_row
from draftlens.core.tree import Topology
from draftlens.drafting.growth import Level, Nodes
from draftlens.drafting.joining_rows import likeliest, score_tokens
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt


class CachedModel:
    """A draft model that follows the answers of a batch. It is a `TreeScorer`.

    One round is `begin_round`, `catch_up`, one `expand` for each level that has children below it,
    `end_growth` and `keep`. Where nothing is drafted, it is `begin_round` and `keep`.

    Args:
        backbone: the model.
        vocab_size: ids that the target has; the draft may have more or fewer.

    Attributes:
        cache: the model's own.
        prompt_lengths: tokens of each row's prompt, as the model reads it.
        pending: per row, emitted tokens that the cache lacks; never empty.
        forwards: decode forwards so far.
        agreement: how many of the tokens that were pending in the last `catch_up` the model would
            have guessed, and how many not.
        widths: new tokens of each forward of this round, all rows together.
    """

    def __init__(self, backbone: Backbone, vocab_size: int) -> None:
        self.backbone = backbone
        self.vocab_size = vocab_size
        self.device = backbone.device
        self.forwards = 0
        self.agreement = (0, 0)
        self.widths: list[int] = []
        self.cache: KVCache | None = None
        self.prompt_lengths: list[int] = []
        self.pending: list[list[int]] = []
        self._next_position: Tensor | None = None
        self._caught_up = False
        self._forwarded: tuple[int, ...] = ()
        self._start: list[int] = []
        self._base: list[int] = []

    @property
    def lengths(self) -> list[int]:
        """Cached tokens of each row."""
        return [] if self.cache is None else self.cache.lengths

    @property
    def nbytes(self) -> int:
        """Bytes of the cache."""
        return 0 if self.cache is None else self.cache.nbytes

    def read(
        self, prompt: Prompt, fill: Callable[[KVCache], Tensor | None], room: int, batch: Batch
    ) -> None:
        """Read the prompts of rows that join.

        Args:
            prompt: of these rows, as the model reads it.
            fill: writes the prompt into an empty cache.
            room: further tokens of each row, guesses included.
            batch: these rows, with at least one token each.
        """
        if self.cache is None or self._next_position is None or not self.cache.lengths:
            self.cache = self.backbone.new_cache(prompt, room)
            fill(self.cache)
            self._next_position = prompt.next_position
        else:
            cache = self.cache.new_rows(len(prompt.lengths))
            fill(cache)
            self.cache.join(cache)
            self._next_position = torch.cat([self._next_position, prompt.next_position], dim=-2)
        self.prompt_lengths += prompt.lengths
        for history in batch.histories:
            tokens = list(history.tokens)
            # A row that has ended is forwarded beside the others and must not widen the pass.
            self.pending.append(tokens[-1:] if history.finished else tokens)
        self._start = list(self.cache.lengths)

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its place."""
        assert self.cache is not None
        assert self._next_position is not None
        self.cache.remove(row)
        self._next_position = without_row(self._next_position, row)
        replace_by_last(self.pending, row)
        replace_by_last(self.prompt_lengths, row)
        self._start = list(self.cache.lengths)

    def begin_round(self) -> None:
        """Begin a round. Unless `catch_up` follows, nothing is drafted in it."""
        assert self.cache is not None
        self.widths = []
        self._caught_up = False
        self._forwarded = ()
        self._start = list(self.cache.lengths)

    def end_growth(self, topology: Topology, depth: int) -> None:
        """Learn which nodes were forwarded.

        Args:
            topology: the tree of this round.
            depth: of the deepest level that was grown. The nodes above it were forwarded if they
                have children.
        """
        inner = topology.inner[1:]
        self._forwarded = tuple(node for node in inner if topology.depths[node] < depth)

    def process(self, logits: Tensor, nodes: Nodes) -> Tensor:
        """See `TreeScorer.process`."""
        return nodes.process(logits)

    def catch_up(self, steps: Tensor) -> Tensor:
        """Forward the pending tokens; see `TreeScorer.catch_up`."""
        assert self.cache is not None
        self._caught_up = True
        counts = [len(tokens) for tokens in self.pending]
        width = max(counts)
        # A shorter row repeats its last token behind itself: no token attends to it, and the next
        # pass overwrites it.
        padded = [tokens + tokens[-1:] * (width - len(tokens)) for tokens in self.pending]
        tokens = torch.tensor(padded, device=self.device)
        count = torch.tensor(counts, device=self.device)[:, None]
        causal = torch.ones(width, width, dtype=torch.bool, device=self.device).tril()
        mask = trees.attention_mask(self._start, causal)
        positions = steps - count + torch.arange(width, device=self.device)
        logits = self._forward(tokens, positions, mask)
        self._base = [start + length for start, length in zip(self._start, counts, strict=True)]
        self.cache.truncate(self._base)
        self.agreement = _agreement(logits, padded, counts) if width > 1 else (0, 0)
        if min(counts) == width:
            return logits[:, -1:]
        rows = torch.arange(len(counts), device=self.device)[:, None]
        return logits[rows, count - 1]

    def expand(self, tokens: Tensor, steps: Tensor, level: Level) -> Tensor:
        """Forward one level's inner nodes; see `TreeScorer.expand`."""
        assert self.cache is not None
        mask = None
        if not (level.sees_all and self.cache.uniform):
            mask = trees.attention_mask(self._base, level.window.to(self.device))
        return self._forward(tokens, steps.expand(-1, tokens.shape[1]), mask)

    def run_on(self, logits: Tensor, steps: Tensor, count: int) -> Tensor | None:
        """See `TreeScorer.run_on`."""
        assert self.cache is not None
        assert self._next_position is not None
        if not self.cache.uniform:
            return None
        self.forwards += count - 1
        self.widths += [len(logits)] * (count - 1)
        positions = self._next_position + steps
        return likeliest(self.backbone, self.vocab_size, logits, positions, self.cache, count)

    def keep(self, verdict: Verdict, batch: Batch) -> None:
        """Follow the verdict: keep the accepted nodes that were forwarded; the others are pending.

        Args:
            verdict: on the tree of this round.
            batch: all rows, with the verdict's tokens.
        """
        assert self.cache is not None
        if self._caught_up:
            self._keep_path(verdict)
        else:
            self.pending = [
                [*pending, *tokens]
                for pending, tokens in zip(self.pending, verdict.tokens, strict=True)
            ]
        for row, history in enumerate(batch.histories):
            if history.finished:  # it is forwarded beside the others but must not grow
                self.cache.lengths[row] = self._start[row]
                self.pending[row] = [history.last_token]

    def _keep_path(self, verdict: Verdict) -> None:
        assert self.cache is not None
        slot = {node: index for index, node in enumerate(self._forwarded)}
        slots = [[slot[node] for node in path if node in slot] for path in verdict.paths]
        self.cache.keep(self._base, slots)
        self.pending = [
            list(tokens[len(row_slots) :])
            for tokens, row_slots in zip(verdict.tokens, slots, strict=True)
        ]

    def _forward(self, tokens: Tensor, steps: Tensor, mask: Tensor | None) -> Tensor:
        assert self.cache is not None
        assert self._next_position is not None
        self.forwards += 1
        self.widths.append(tokens.numel())
        positions = self._next_position + steps
        return score_tokens(self.backbone, self.vocab_size, tokens, positions, self.cache, mask)


def _agreement(logits: Tensor, tokens: list[list[int]], counts: list[int]) -> tuple[int, int]:
    """How many tokens of a forward its own logits choose, and how many not.

    Args:
        logits: ``[B, T, V]``.
        tokens: the forwarded tokens ``[B, T]``.
        counts: how many of them count, per row.
    """
    hits = misses = 0
    choices = logits[:, :-1].argmax(-1).tolist()
    for row_choices, row_tokens, count in zip(choices, tokens, counts, strict=True):
        for choice, token in zip(row_choices[: count - 1], row_tokens[1:count], strict=True):
            hits += choice == token
            misses += choice != token
    return hits, misses

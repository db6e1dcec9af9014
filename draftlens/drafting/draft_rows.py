"""How a draft tree grows level by level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from draftlens.core import tree as trees
from draftlens.core.sequence import Batch, replace_by_last, without_row
from draftlens.core.tree import ROOT, Topology, Verdict
from draftlens.drafting.draft_prompt import DraftPrompt
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EndsChain
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt_reading import store_answer


@dataclass(frozen=True)
class Level:
    """How one level of a tree comes from the one above."""

    nodes: slice  # the level's nodes in the tree
    parents: list[int]  # index of each node's parent among the expanded nodes above
    ranks: list[int]  # how many siblings come before each node
    # index of each node's token among the `most_siblings` children of every expanded node above,
    # int64 ``[nodes]``
    choices: Tensor
    most_siblings: int  # length of the longest row of siblings
    expanded: list[int]  # nodes with children, relative to the level
    inner: Tensor  # the same nodes in the tree, int64 ``[E]``
    # bool ``[I, I]``, which of all nodes with children each of them attends to
    window: Tensor
    first: int  # index of the first expanded node among them
    sees_all: bool  # whether the expanded nodes attend to all that were expanded so far

    def tokens(self, children: Tensor) -> Tensor:
        """The level's draft tokens ``[B, nodes]``, from the children of the expanded nodes above,
        ``[B, E, most_siblings]``."""
        if len(self.parents) == 1:
            return children[:, 0]
        return children.flatten(1).index_select(1, self.choices)

    def expanded_tokens(self, tokens: Tensor) -> Tensor:
        """The tokens of the expanded nodes ``[B, E]``, from those of the tree ``[B, N]``."""
        first = self.nodes.start + self.expanded[0]
        end = self.nodes.start + self.expanded[-1] + 1
        if end - first == len(self.expanded):  # without a table of indices, as along a chain
            return tokens[:, first:end]
        return tokens.index_select(1, self.inner)


@lru_cache
def levels(topology: Topology, device: torch.device | None = None) -> tuple[Level, ...]:
    """The levels of a tree, from the first one down."""
    plan = []
    parents_above = [ROOT]
    inner = [node for node in topology.inner if node != ROOT]
    visible = trees.ancestors(topology)[1:, 1:][inner][:, inner]
    window = visible.to(device)
    for depth in range(1, topology.depth + 1):
        nodes = [node for node, d in enumerate(topology.depths) if d == depth]
        parents = [topology.parents[node] for node in nodes]
        expanded = [node for node in nodes if node in topology.children]
        first = sum(topology.depths[node] < depth for node in inner)
        end = first + len(expanded)
        places = [parents_above.index(parent) for parent in parents]
        ranks = [
            topology.children[parent].index(node)
            for node, parent in zip(nodes, parents, strict=True)
        ]
        most_siblings = max(ranks) + 1
        level = Level(
            nodes=slice(nodes[0], nodes[-1] + 1),
            parents=places,
            ranks=ranks,
            choices=(torch.tensor(places) * most_siblings + torch.tensor(ranks)).to(device),
            most_siblings=most_siblings,
            expanded=[node - nodes[0] for node in expanded],
            inner=torch.tensor(expanded, dtype=torch.long).to(device),
            window=window,
            first=first,
            sees_all=bool(visible[first:end, :end].all()),
        )
        plan.append(level)
        parents_above = expanded
    return tuple(plan)


@dataclass(frozen=True)
class Nodes:
    """Nodes of a tree that grows, the same in every row of a batch."""

    batch: Batch
    topology: Topology
    tokens: Tensor  # draft tokens so far, int64 ``[B, N]``
    nodes: list[int]  # M nodes of the same level; `ROOT` allowed

    def process(self, logits: Tensor) -> Tensor:
        """Scores ``[B, M, V]`` after each row's logits processors, from one model's logits there,
        ``[B, M, V]``."""
        num_rows = len(self.batch)
        topologies = (self.topology,) * num_rows
        return self.batch.process(logits, topologies, self.tokens, [self.nodes] * num_rows)


def score_tokens(
    backbone: Backbone,
    vocab_size: int,
    tokens: Tensor,
    positions: Tensor,
    cache: KVCache,
    mask: Tensor | None,
) -> Tensor:
    """`Backbone.forward` of a draft over ids of the target: logits ``[B, T, V]`` for its V ids."""
    if vocab_size > backbone.vocab_size:
        tokens = tokens.clamp_max(backbone.vocab_size - 1)
    return with_ids_of_the_target(backbone.forward(tokens, positions, cache, mask), vocab_size)


def likeliest(
    backbone: Backbone,
    vocab_size: int,
    logits: Tensor,
    positions: Tensor,
    cache: KVCache,
    count: int,
    ends: EndsChain | None = None,
) -> Tensor:
    """The likeliest chain of at most `count` ids of the target, int64 ``[B, T]``; all but the last
    are forwarded.

    `logits` ``[B, 1, V]`` follow each row's last token, and `positions`, int64 ``[..., B, 1]``, are
    those of the next ones. The rows of `cache` are equally long.
    """
    first = logits.argmax(-1)
    if (ends is not None and ends(logits, first)) or count == 1:
        return first
    later_tokens = backbone.greedy_chain(first, positions, cache, count - 1, vocab_size, ends)
    if later_tokens is not None:
        return torch.cat([first, later_tokens], 1)
    tokens = [first]
    positions = positions + trees.depths(trees.chain(count - 2), positions.device)
    for step in positions.chunk(count - 1, -1):
        logits = score_tokens(backbone, vocab_size, tokens[-1], step, cache, None)
        tokens.append(logits.argmax(-1))
        if ends is not None and ends(logits, tokens[-1]):
            break
    return torch.cat(tokens, 1)


def with_ids_of_the_target(logits: Tensor, vocab_size: int) -> Tensor:
    """Logits of a draft for the ids that the target has, ``[..., V]``."""
    missing = vocab_size - logits.shape[-1]
    if missing == 0:
        return logits
    if missing < 0:
        return logits[..., :vocab_size]
    # Logits processors are made for the target's ids: those that the draft lacks get no chance.
    return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)


class DraftRows:
    """A draft model that follows a batch, so that no accepted token is forwarded twice.

    One round is `begin_round`, `catch_up`, one `expand` for each level that has children (or one
    `run_on`), and `keep`. Where nothing is drafted, it is `begin_round` and `keep`.

    `vocab_size`, V, is that of the target; the draft may have more or fewer ids.
    """

    def __init__(self, backbone: Backbone, vocab_size: int) -> None:
        self.backbone = backbone
        self.vocab_size = vocab_size
        self.device = backbone.device
        # prompts and accepted tokens; None before the first `join`
        self.cache: KVCache | None = None
        self.prompt_lengths: list[int] = []  # slots of the cache
        self.pending: list[list[int]] = []  # per row, tokens of the answer that the cache lacks
        self.forwards = 0  # decode forwards so far
        self.widths: list[int] = []  # new tokens of each forward of this round, all rows together
        self._next_positions: list[Tensor] = []  # one for each view of the prompts
        self._caught_up = False
        self._forwarded: list[int] = []  # nodes of the tree, in the order of their slots
        self._tree_mask: Any = None  # of all nodes of the tree that have children
        self._start: list[int] = []  # lengths before this round
        self._base: list[int] = []  # lengths before the nodes of this round

    @property
    def lengths(self) -> list[int]:
        """Slots of the cache that each row takes."""
        return [] if self.cache is None else self.cache.lengths

    @property
    def nbytes(self) -> int:
        return 0 if self.cache is None else self.cache.nbytes

    @property
    def num_views(self) -> int:
        """How many times a forward reads each new token."""
        return 1

    def held(self, row: int) -> int:
        """Tokens of a row's answer that the cache holds."""
        return self.lengths[row] - self.prompt_lengths[row]

    def join(self, draft: DraftPrompt, batch: Batch, room: int) -> Tensor | None:
        """Read the prompts of rows that join (`DraftPrompt.fill`); `room` includes draft tokens."""
        cache = self._empty_rows(draft, room)
        logits = draft.fill(cache)
        self._take(cache, [draft.prompt.next_position], batch)
        return logits

    def _empty_rows(self, draft: DraftPrompt, room: int) -> KVCache:
        """An empty cache, or further rows of the present one."""
        if self.cache is None or not self.cache.lengths:
            return self.backbone.new_cache(draft.prompt, room)
        return self.cache.new_rows(len(draft.prompt.lengths))

    def _take(self, cache: KVCache, positions: Sequence[Tensor], batch: Batch) -> None:
        """Add rows with prompts in a cache; `positions` are their next ones in each view."""
        if self.cache is None or not self.cache.lengths:
            self.cache = cache
            self._next_positions = list(positions)
        else:
            self.cache.join(cache)
            pairs = zip(self._next_positions, positions, strict=True)
            self._next_positions = [torch.cat(pair, dim=-2) for pair in pairs]
        self.prompt_lengths += cache.lengths
        for history in batch.histories:
            tokens = list(history.tokens)
            # A row that has ended is forwarded beside the others and must not widen the pass.
            self.pending.append(tokens[-1:] if history.finished else tokens)

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its place."""
        assert self.cache is not None
        self.cache.remove(row)
        self._next_positions = [without_row(table, row) for table in self._next_positions]
        replace_by_last(self.pending, row)
        replace_by_last(self.prompt_lengths, row)

    def clear(self) -> None:
        """Forget all rows and give up the cache."""
        self.cache = None
        self.prompt_lengths, self.pending, self._next_positions = [], [], []

    def truncate(self, row: int, count: int, settled: int | None = None) -> int:
        """Forget what the cache holds of a row's answer after its first `count` tokens, or after
        fewer where only these can be had; returns how many. The first `settled` tokens stay in
        later calls."""
        assert self.cache is not None
        prompt = self.prompt_lengths[row]
        longest = min(self.cache.lengths[row], prompt + count)
        floor = None if settled is None else prompt + settled
        self.cache.lengths[row] = self.cache.reach(row, longest, floor)
        return self.held(row)

    def begin_round(self) -> None:
        """Begin a round. Unless `catch_up` follows, nothing is drafted in it."""
        self.widths = []
        self._caught_up = False
        self._forwarded = []
        self._start = list(self.lengths)

    def catch_up(self, steps: Tensor) -> Tensor:
        """Forward the pending tokens; logits after each of the W tokens, ``[B, W, V]``.

        Those of a row's own tokens come first; the others are fillers. `steps` is the index in its
        answer of each row's next token, int64 ``[B, 1]``.
        """
        assert self.cache is not None
        self._caught_up = True
        self._tree_mask = None
        start = list(self.cache.lengths)
        counts = [len(tokens) for tokens in self.pending]
        width = max(counts)
        # No token attends to a filler, and the next pass overwrites it.
        padded = [t + (t[-1:] or [0]) * (width - len(t)) for t in self.pending]
        offsets = [range(-count, width - count) for count in counts]
        tokens, offset = trees.upload([padded, offsets], self.device)
        mask = self._mask(start, trees.ancestors(trees.chain(width - 1), self.device))
        logits = self._forward(tokens, steps + offset, mask)
        self._base = [
            length + new * self.num_views for length, new in zip(start, counts, strict=True)
        ]
        self.cache.truncate(self._base)
        return logits

    def last(self, logits: Tensor) -> Tensor:
        """Logits after each row's last pending token, ``[B, 1, V]``, of those of `catch_up`."""
        counts = [len(tokens) for tokens in self.pending]
        if min(counts) == logits.shape[1]:
            return logits[:, -1:]
        places = [row * logits.shape[1] + count - 1 for row, count in enumerate(counts)]
        return logits.flatten(0, 1)[trees.upload(places, self.device)][:, None]

    def expand(self, tokens: Tensor, steps: Tensor, level: Level) -> Tensor:
        """Forward the nodes of a level that have children, with tokens int64 ``[B, E]``.

        `steps` are the indices in the answers of these tokens, int64 ``[B, 1]``. Returns the logits
        after the nodes, ``[B, E, V]``.
        """
        assert self.cache is not None
        self._forwarded += [level.nodes.start + node for node in level.expanded]
        mask = None
        if not (level.sees_all and self.num_views == 1 and self.cache.uniform):
            if self._tree_mask is None:
                self._tree_mask = self._mask(self._base, level.window)
            first, end = (self.num_views * n for n in (level.first, level.first + tokens.shape[1]))
            mask = self._tree_mask[:, :, first:end, : max(self._base) + end]
        return self._forward(tokens, steps.expand(-1, tokens.shape[1]), mask)

    def run_on(
        self, logits: Tensor, steps: Tensor, count: int, ends: EndsChain | None = None
    ) -> Tensor | None:
        """The likeliest chain of at most `count` draft tokens in one go, int64 ``[B, T]``, as by
        one `expand` after the other; None, with nothing forwarded, where that is not possible.

        `logits` follow each row's last token, ``[B, 1, V]``; `steps` are the indices of the next
        ones, int64 ``[B, 1]``. All tokens of the chain but the last are forwarded. `ends` is asked
        after each of them, the last one included.
        """
        assert self.cache is not None
        if not self.cache.uniform:
            return None
        positions = self._next_positions[0] + steps
        chain = likeliest(
            self.backbone, self.vocab_size, logits, positions, self.cache, count, ends
        )
        forwarded = chain.shape[1] - 1
        self.forwards += forwarded
        self.widths += [len(logits)] * forwarded
        self._forwarded = list(range(forwarded))
        return chain

    def keep(self, verdict: Verdict, batch: Batch) -> None:
        """Keep the accepted nodes that were forwarded; the other emitted tokens are pending."""
        assert self.cache is not None
        if self._caught_up:
            self._keep_path(verdict)
        else:
            self.pending = [
                [*pending, *tokens]
                for pending, tokens in zip(self.pending, verdict.tokens, strict=True)
            ]
        for row, history in enumerate(batch.histories):
            if history.finished and self.cache.held[row] is not None:
                tokens = history.tokens[: self.held(row)]
                position = self._next_positions[0][..., row, :]
                store_answer(self.backbone, self.cache, row, tokens, position)
            if history.finished:  # it is forwarded beside the others but must not grow
                self.cache.lengths[row] = self._start[row]
                self.pending[row] = [history.last_token]

    def _keep_path(self, verdict: Verdict) -> None:
        assert self.cache is not None
        index_of = {node: index for index, node in enumerate(self._forwarded)}
        paths = [[index_of[node] for node in path if node in index_of] for path in verdict.paths]
        m = self.num_views
        slots = [[index * m + view for index in path for view in range(m)] for path in paths]
        self.cache.keep(self._base, slots)
        self.pending = [
            list(tokens[len(path) :]) for tokens, path in zip(verdict.tokens, paths, strict=True)
        ]

    def _mask(self, prefix: list[int], window: Tensor) -> Tensor | None:
        """The mask of W tokens after a prefix of each row; `window` is bool ``[W, W]``."""
        return trees.attention_mask(prefix, window)

    def _forward(self, tokens: Tensor, indices: Tensor, mask: Tensor | None) -> Tensor:
        """Forward tokens after those of the cache; logits ``[B, T, V]``.

        Args:
            tokens: int64 ``[B, T]``.
            indices: of these tokens in their answers, int64 ``[B, T]``.
            mask: None if every token attends to everything.
        """
        assert self.cache is not None
        self.forwards += 1
        self.widths.append(tokens.numel())
        positions = self._next_positions[0] + indices
        return score_tokens(self.backbone, self.vocab_size, tokens, positions, self.cache, mask)

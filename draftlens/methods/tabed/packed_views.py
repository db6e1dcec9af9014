"""One copy of a draft model that follows the answers in several views of the prompt at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftlens.core import tree as trees
from draftlens.core.batch import Batch
from draftlens.core.proposal import Verdict
from draftlens.core.rows import replace_by_last, without_row
from draftlens.core.tree import Topology
from draftlens.drafting.draft_prompt import DraftPrompt, append_slots
from draftlens.drafting.growth import Level
from draftlens.drafting.joining_rows import score_tokens
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import BLOCK, KVCache

NOBODY = -1
"""The owner of a slot that belongs to no view."""

SPARE = 16
"""Least number of further tokens of each view for which there is room when slots move."""

Present = tuple[bool, ...]
"""For each view whether a row has it."""


class PackedModel:
    """A draft model with m views of each prompt in one cache.

    The views of a row lie one behind the other in one row of the cache, so nothing is padded to the
    longest of them, and a forward over one new token of each view reads every key once. A table
    names the view that owns each slot, and a mask lets the tokens of a view attend to its own slots
    only. The tokens of an answer lie interleaved: the first token in all views, then the second.

    One round is that of `CachedModel`, with logits of the a views that are awake.

    Args:
        backbone: the model.
        vocab_size: ids that the target has; the draft may have more or fewer.
        num_views: m.

    Attributes:
        cache: the keys and values of the views that are awake.
        awake: the views that some row has, in rising order; these are asked.
        present: per row, which views it has.
        pending: per row, emitted tokens that the cache lacks; never empty.
        forwards: decode forwards so far.
        widths: new tokens of each forward of this round, all rows and views together.
    """

    def __init__(self, backbone: Backbone, vocab_size: int, num_views: int) -> None:
        self.backbone = backbone
        self.vocab_size = vocab_size
        self.num_views = num_views
        self.device = backbone.device
        self.cache: KVCache | None = None
        self.awake: tuple[int, ...] = ()
        self.present: list[Present] = []
        self.pending: list[list[int]] = []
        self.forwards = 0
        self.widths: list[int] = []
        self._next_positions: dict[int, Tensor] = {}
        self._owners = torch.empty(0, 0, dtype=torch.int8, device=self.device)
        self._answered: list[int] = []  # emitted tokens of each row
        self._room = 0
        self._caught_up = False
        self._forwarded: tuple[int, ...] = ()
        self._start: list[int] = []
        self._base: list[int] = []

    @property
    def lengths(self) -> list[int]:
        """Cached tokens of each row, in all views that are awake."""
        return [] if self.cache is None else self.cache.lengths

    @property
    def nbytes(self) -> int:
        """Bytes of the cache."""
        return 0 if self.cache is None else self.cache.nbytes

    def join(
        self,
        drafts: Sequence[DraftPrompt],
        present: Sequence[Present],
        batch: Batch,
        room: int,
    ) -> list[Tensor | None]:
        """Read the prompts of rows that join.

        Args:
            drafts: the prompt of each view.
            present: per row, which views it has, at least one. Of a view that no row has only the
                prompt's positions are looked at.
            batch: these rows, with at least one token each.
            room: further tokens of each row and view, guesses included.

        Returns:
            Per view the logits behind each row's prompt, ``[B, 1, V]``; None where the model did
            not compute them, or no row has the view.
        """
        self._room = min(room, BLOCK)
        rows = self._rows_for(drafts, present)
        logits: list[Tensor | None] = []
        for view, draft in enumerate(drafts):
            has_view = [views[view] for views in present]
            if not any(has_view):
                logits.append(None)
            elif all(has_view) and not any(rows.lengths):
                logits.append(draft.fill(rows))
            else:
                logits.append(self._read_behind(draft, has_view, rows))
        self._take(drafts, present, rows)
        for history in batch.histories:
            tokens = list(history.tokens)
            self.pending.append(tokens[-1:] if history.finished else tokens)
            self._answered.append(len(tokens))
        return logits

    def _rows_for(self, drafts: Sequence[DraftPrompt], present: Sequence[Present]) -> KVCache:
        """An empty cache, or further rows of the present one, with room for all views."""
        longest = 0
        for row, views in enumerate(present):
            pairs = zip(drafts, views, strict=True)
            held = sum(draft.prompt.lengths[row] for draft, has_view in pairs if has_view)
            longest = max(longest, held)
        capacity = longest + len(drafts) * self._room
        if self.cache is None or not self.cache.lengths:
            cache = self.backbone.new_cache(drafts[0].prompt, 0)
        else:
            cache = self.cache.new_rows(len(drafts[0].prompt.lengths))
        cache.capacity = max(cache.capacity, capacity)
        return cache

    def _read_behind(
        self, draft: DraftPrompt, has_view: Sequence[bool], rows: KVCache
    ) -> Tensor | None:
        """Read the prompt of a further view, which attends to none of the others."""
        alone = self.backbone.new_cache(draft.prompt, 0)
        logits = draft.fill(alone)
        lengths = draft.prompt.lengths
        kept = [
            torch.arange(length if has else 0)
            for length, has in zip(lengths, has_view, strict=True)
        ]
        append_slots(alone, rows, [kept] * len(alone.layers))
        return logits

    def _take(
        self, drafts: Sequence[DraftPrompt], present: Sequence[Present], rows: KVCache
    ) -> None:
        """Let the rows that were read join those that are there."""
        is_first = self.cache is None or not self.cache.lengths
        num_before = 0 if is_first else len(self.lengths)
        if self.cache is None or is_first:
            self.cache = rows
            self._owners = self._owners[:0]
        else:
            self.cache.join(rows)
        for view, draft in enumerate(drafts):
            positions = draft.prompt.next_position
            if not is_first:
                positions = torch.cat([self._next_positions[view], positions], dim=-2)
            self._next_positions[view] = positions
        self.present += present
        self.awake = tuple(
            view for view in range(self.num_views) if any(row[view] for row in self.present)
        )
        if not is_first:  # they may go on in more views than before
            held = self._capacity(self.cache.lengths[:num_before])
            self.cache.capacity = max(self.cache.capacity, held)
        self._grow_owners(max(self.cache.lengths))
        for row, views in enumerate(present, num_before):
            slot = 0
            for view, draft in enumerate(drafts):
                if views[view]:
                    end = slot + draft.prompt.lengths[row - num_before]
                    self._owners[row, slot:end] = view
                    slot = end
        self._start = list(self.cache.lengths)

    def _capacity(self, held: Sequence[int]) -> int:
        """Slots of a cache whose rows hold so many and go on in the views that are awake."""
        further = [max(SPARE, self._room - answered) for answered in self._answered]
        pairs = zip(held, further, strict=True)
        return max(length + len(self.awake) * tokens for length, tokens in pairs)

    def _grow_owners(self, width: int) -> None:
        """Make the table of owners cover all rows and at least `width` slots."""
        num_rows, old_width = self._owners.shape
        rows = len(self.lengths)
        if rows <= num_rows and width <= old_width:
            return
        size = (max(rows, num_rows), max(width + BLOCK, old_width))
        owners = self._owners.new_full(size, NOBODY)
        owners[:num_rows, :old_width] = self._owners
        self._owners = owners

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its place."""
        assert self.cache is not None
        last = len(self.lengths) - 1
        self._owners[row] = self._owners[last]
        self._owners = self._owners[:last]
        self.cache.remove(row)
        for view, positions in self._next_positions.items():
            self._next_positions[view] = without_row(positions, row)
        replace_by_last(self.pending, row)
        replace_by_last(self.present, row)
        replace_by_last(self._answered, row)
        self._start = list(self.cache.lengths)

    def begin_round(self) -> None:
        """Begin a round. Unless `catch_up` follows, nothing is drafted in it."""
        self.widths = []
        self._caught_up = False
        self._forwarded = ()
        self._start = list(self.lengths)

    def end_growth(self, topology: Topology, depth: int) -> None:
        """See `Follower.end_growth`."""
        inner = topology.inner[1:]
        self._forwarded = tuple(node for node in inner if topology.depths[node] < depth)

    def catch_up(self, steps: Tensor) -> Tensor:
        """Forward the pending tokens in all views that are awake.

        Args:
            steps: index in its answer of each row's next token, int64 ``[B, 1]``.

        Returns:
            Logits behind each of the W tokens, ``[B, a, W, V]``. Those that count stand first; a
            row with fewer tokens repeats its last one.
        """
        assert self.cache is not None
        self._caught_up = True
        tokens, counts = _padded(self.pending, self.device)
        width = tokens.shape[1]
        causal = torch.ones(width, width, dtype=torch.bool, device=self.device).tril()
        first = steps - torch.tensor(counts, device=self.device)[:, None]
        indices = first + torch.arange(width, device=self.device)
        logits = self._forward(tokens, indices, self._start, causal)
        num_views = len(self.awake)
        self._base = [
            start + count * num_views for start, count in zip(self._start, counts, strict=True)
        ]
        self.cache.truncate(self._base)
        self._own(self._start, self._base)
        return logits

    def expand(self, tokens: Tensor, steps: Tensor, level: Level) -> Tensor:
        """Forward one level's inner nodes in all views that are awake.

        Args:
            tokens, steps, level: as for `TreeScorer.expand`.

        Returns:
            Logits behind each node, ``[B, a, E, V]``.
        """
        indices = steps.expand(-1, tokens.shape[1])
        sees_all = level.sees_all and len(self.awake) == 1 and self._is_uniform
        window = None if sees_all else level.window.to(self.device)
        return self._forward(tokens, indices, self._base, window)

    @property
    def _is_uniform(self) -> bool:
        return self.cache is not None and self.cache.uniform

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
            _extend(self.pending, verdict)
        for row, history in enumerate(batch.histories):
            self._answered[row] = history.length
            if history.finished:  # it is forwarded beside the others but must not grow
                self._owners[row, self._start[row] :] = NOBODY
                self.cache.lengths[row] = self._start[row]
                self.pending[row] = [history.last_token]

    def _keep_path(self, verdict: Verdict) -> None:
        assert self.cache is not None
        place = {node: index for index, node in enumerate(self._forwarded)}
        num_views = len(self.awake)
        slots = []
        pending = []
        for path, tokens in zip(verdict.paths, verdict.tokens, strict=True):
            places = [place[node] for node in path if node in place]
            slots.append([p * num_views + view for p in places for view in range(num_views)])
            pending.append(list(tokens[len(places) :]))
        self.cache.keep(self._base, slots)
        self.pending = pending
        self._own(self._base, self.cache.lengths)

    def drop(self, view: int) -> None:
        """Take a view from all rows, between two rounds. Each row has another one. Rows that join
        later may have the view."""
        assert self.cache is not None
        table = self._owners[:, : max(self.lengths)]
        others = [((row != view) & (row != NOBODY)).nonzero()[:, 0] for row in table]
        owners = [row[slots] for row, slots in zip(table, others, strict=True)]
        self.present = [(*row[:view], False, *row[view + 1 :]) for row in self.present]
        self.awake = tuple(other for other in self.awake if other != view)
        self.cache = self._moved(others)
        self._owners.fill_(NOBODY)
        for row, names in enumerate(owners):
            self._owners[row, : len(names)] = names
        self._start = list(self.cache.lengths)

    def _moved(self, slots: list[Tensor]) -> KVCache:
        """A cache of some slots of each row, int64 ``[K]``."""
        assert self.cache is not None
        num_layers = len(self.cache.layers)
        capacity = self._capacity(list(map(len, slots)))
        cache = KVCache(num_layers, len(slots), capacity, grows=True)
        append_slots(self.cache, cache, [slots] * num_layers)
        return cache

    def _forward(
        self, tokens: Tensor, indices: Tensor, prefix: list[int], window: Tensor | None
    ) -> Tensor:
        """Forward tokens in all views that are awake.

        Args:
            tokens: int64 ``[B, T]``.
            indices: of these tokens in their answers, int64 ``[B, T]``.
            prefix: slots of each row before the first that `window` names.
            window: bool ``[T, W]``, which of the W tokens behind the prefix each token attends to;
                None if every token attends to everything.

        Returns:
            ``[B, a, T, V]``.
        """
        assert self.cache is not None
        num_views = len(self.awake)
        num_rows, num_tokens = tokens.shape
        mask = None if window is None else self._mask(prefix, window)
        by_view = [self._next_positions[view] + indices for view in self.awake]
        positions = by_view[0]
        packed = tokens
        if num_views > 1:
            positions = torch.stack(by_view, -1).flatten(-2)
            packed = tokens.repeat_interleave(num_views, 1)
        self.forwards += 1
        self.widths.append(packed.numel())
        logits = score_tokens(self.backbone, self.vocab_size, packed, positions, self.cache, mask)
        if num_views == 1:
            return logits[:, None]
        return logits.view(num_rows, num_tokens, num_views, -1).transpose(1, 2)

    def _mask(self, prefix: list[int], window: Tensor) -> Tensor | None:
        """`trees.attention_mask` where the tokens of a view attend to slots of this view only.

        Args:
            prefix, window: as for `_forward`.
        """
        num_views = len(self.awake)
        if num_views == 1:
            return trees.attention_mask(prefix, window)
        same_view = torch.eye(num_views, dtype=torch.bool, device=self.device)
        packed = torch.kron(window, same_view)
        longest = max(prefix)
        num_tokens, width = packed.shape
        asking = torch.tensor(self.awake, dtype=torch.int8, device=self.device)
        asking = asking.repeat(len(window))[None, :, None]
        mask = torch.zeros(
            len(prefix), 1, num_tokens, longest + width, dtype=torch.bool, device=self.device
        )
        mask[:, 0, :, :longest] = self._owners[:, None, :longest] == asking
        if min(prefix) == longest:
            mask[..., longest:] = packed
            return mask
        for row, length in enumerate(prefix):
            mask[row, 0, :, length:] = False
            mask[row, 0, :, length : length + width] = packed
        return mask

    def _own(self, begin: list[int], end: list[int]) -> None:
        """Give the slots of each row from `begin` to `end` to the views that are awake in turn,
        and those behind to nobody."""
        self._grow_owners(max(end))
        turn = torch.tensor(self.awake, dtype=torch.int8, device=self.device)
        for row, (first, last) in enumerate(zip(begin, end, strict=True)):
            self._owners[row, last:] = NOBODY
            self._owners[row, first:last] = turn.repeat((last - first) // len(turn))


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, list[int]]:
    """Tokens of all rows as int64 ``[B, W]``, and how many of them count in each row. A shorter row
    repeats its last token behind itself."""
    counts = list(map(len, rows))
    width = max(counts)
    padded = [[*tokens, *[tokens[-1]] * (width - len(tokens))] for tokens in rows]
    return torch.tensor(padded, device=device), counts


def _extend(pending: list[list[int]], verdict: Verdict) -> None:
    for tokens, more in zip(pending, verdict.tokens, strict=True):
        tokens.extend(more)

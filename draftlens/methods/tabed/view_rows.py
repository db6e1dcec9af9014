"""Several views of each prompt in one cache of a draft model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftlens.core import tree as trees
from draftlens.core.sequence import Batch, replace_by_last
from draftlens.core.tree import Verdict
from draftlens.drafting.draft_prompt import DraftPrompt, append_slots
from draftlens.drafting.draft_rows import DraftRows, score_tokens
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EndsChain
from draftlens.models.kv_cache import BLOCK, KVCache

NOBODY = -1  # The owner of a slot that belongs to no view.
SPARE = 16  # Further tokens of each view for which there is room when slots move, at least.

Present = tuple[bool, ...]  # For each view whether a row has it.


class ViewRows(DraftRows):
    """`DraftRows` with m views of each prompt.

    The views of a row follow each other in one row of the cache, so nothing is padded to the
    longest of them, and a forward over one new token of each view reads every key once. A table
    names the view that owns each slot, and a mask lets the tokens of a view attend to its own slots
    only. The tokens of an answer are interleaved: the first token in all views, then the second.

    Logits have one more axis, for the a views that are awake: ``[B, a, W, V]``.
    """

    def __init__(self, backbone: Backbone, vocab_size: int) -> None:
        super().__init__(backbone, vocab_size)
        # views that some row has, in rising order; only these are forwarded
        self.awake: tuple[int, ...] = ()
        self.present: list[Present] = []  # per row, which views it has
        self._owners = torch.empty(0, 0, dtype=torch.int8, device=self.device)
        self._answered: list[int] = []  # emitted tokens of each row
        self._room = 0

    @property
    def num_views(self) -> int:
        return len(self.awake)

    def join_views(
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
                prompt's positions are used.
            room: further tokens of each row and view, draft tokens included.

        Returns:
            Per view the logits after each row's prompt, ``[B, 1, V]``; None where the model did not
            compute them, or no row has the view.
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
                logits.append(self._read_after(draft, has_view, rows))
        self._take_views(drafts, present, rows, batch)
        return logits

    def _rows_for(self, drafts: Sequence[DraftPrompt], present: Sequence[Present]) -> KVCache:
        """An empty cache, or further rows of the present one, with room for all views."""
        longest = 0
        for row, views in enumerate(present):
            pairs = zip(drafts, views, strict=True)
            num_tokens = sum(draft.prompt.lengths[row] for draft, has_view in pairs if has_view)
            longest = max(longest, num_tokens)
        capacity = longest + len(drafts) * self._room
        cache = self._empty_rows(drafts[0], 0).whole()
        cache.capacity = max(cache.capacity, capacity)
        return cache

    def _read_after(
        self, draft: DraftPrompt, has_view: Sequence[bool], rows: KVCache
    ) -> Tensor | None:
        """Read the prompt of a further view, which attends to none of the others."""
        alone = self.backbone.new_cache(draft.prompt, 0).whole()
        logits = draft.fill(alone)
        lengths = draft.prompt.lengths
        slots = [
            torch.arange(length if has else 0, device=self.device)
            for length, has in zip(lengths, has_view, strict=True)
        ]
        append_slots(alone, rows, [slots] * len(alone.stores))
        return logits

    def _take_views(
        self,
        drafts: Sequence[DraftPrompt],
        present: Sequence[Present],
        rows: KVCache,
        batch: Batch,
    ) -> None:
        num_before = len(self.lengths)
        if not num_before:
            self._owners = self._owners[:0]
        self._take(rows, [draft.prompt.next_position for draft in drafts], batch)
        assert self.cache is not None
        self.present += present
        self.awake = tuple(
            view for view in range(len(drafts)) if any(row[view] for row in self.present)
        )
        if num_before:  # they may go on in more views than before
            capacity = self._capacity(self.cache.lengths[:num_before])
            self.cache.capacity = max(self.cache.capacity, capacity)
        self._answered += [history.length for history in batch.histories]
        self._grow_owners(max(self.cache.lengths))
        for row, views in enumerate(present):
            slot = 0
            for view, draft in enumerate(drafts):
                if views[view]:
                    end = slot + draft.prompt.lengths[row]
                    self._owners[num_before + row, slot:end] = view
                    slot = end

    def _capacity(self, held: Sequence[int]) -> int:
        """Slots of a cache with rows of these lengths that continue in the views that are awake."""
        further = [max(SPARE, self._room - answered) for answered in self._answered]
        pairs = zip(held, further, strict=True)
        return max(length + len(self.awake) * tokens for length, tokens in pairs)

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its place."""
        last = len(self.lengths) - 1
        self._owners[row] = self._owners[last]
        self._owners = self._owners[:last]
        super().remove(row)
        replace_by_last(self.present, row)
        replace_by_last(self._answered, row)

    def catch_up(self, steps: Tensor) -> Tensor:
        """Logits ``[B, a, W, V]`` of the views that are awake."""
        start = list(self.lengths)
        logits = super().catch_up(steps)
        self._own(start, self._base)
        return logits

    def last(self, logits: Tensor) -> Tensor:
        """Logits after each row's last pending token, ``[B, a, 1, V]``."""
        if logits.shape[2] == 1:
            return logits
        counts = [len(tokens) for tokens in self.pending]
        if min(counts) == logits.shape[2]:
            return logits[:, :, -1:]
        last = trees.upload([count - 1 for count in counts], logits.device)
        return logits.take_along_dim(last[:, None, None, None], 2)

    def run_on(
        self, logits: Tensor, steps: Tensor, count: int, ends: EndsChain | None = None
    ) -> None:
        """A chain cannot run in one go: the views are mixed at every level."""

    def keep(self, verdict: Verdict, batch: Batch) -> None:
        super().keep(verdict, batch)
        self._answered = [history.length for history in batch.histories]
        if self._caught_up:
            self._own(self._base, self.lengths)

    def drop(self, view: int) -> None:
        """Drop a view from all rows, between two rounds; each row has another one. Rows that join
        later may have the view."""
        table = self._owners[:, : max(self.lengths)]
        kept_slots = [((row != view) & (row != NOBODY)).nonzero()[:, 0] for row in table]
        owners = [row[slots] for row, slots in zip(table, kept_slots, strict=True)]
        self.present = [(*row[:view], False, *row[view + 1 :]) for row in self.present]
        self.awake = tuple(awake_view for awake_view in self.awake if awake_view != view)
        self.prompt_lengths = [
            int((slots < length).sum())
            for slots, length in zip(kept_slots, self.prompt_lengths, strict=True)
        ]
        self.cache = self._moved(kept_slots)
        self._owners.fill_(NOBODY)
        for row, names in enumerate(owners):
            self._owners[row, : len(names)] = names

    def _moved(self, slots: list[Tensor]) -> KVCache:
        """A cache of some slots of each row, int64 ``[K]``."""
        assert self.cache is not None
        capacity = self._capacity(list(map(len, slots)))
        cache = self.backbone.empty_cache(len(slots), capacity).whole()
        append_slots(self.cache, cache, [slots] * len(cache.stores))
        return cache

    def _forward(self, tokens: Tensor, indices: Tensor, mask: Tensor | None) -> Tensor:
        """Forward tokens in all views that are awake; logits ``[B, a, T, V]``."""
        assert self.cache is not None
        num_views = len(self.awake)
        num_rows, num_tokens = tokens.shape
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
        """`core.tree.attention_mask` in which the tokens of a view attend to slots of this view."""
        num_views = len(self.awake)
        if num_views == 1:
            return trees.attention_mask(prefix, window)
        views = trees.upload(self.awake, self.device)[:, None]
        packed = window[:, None, :, None] & (views == views.t())[:, None]
        mask = trees.attention_mask(prefix, packed.flatten(2).flatten(0, 1))
        assert mask is not None
        longest = max(prefix)
        owners = self._owners[:, None, None, None, :longest]
        by_view = mask.view(len(prefix), 1, len(window), num_views, -1)
        # Slots of nobody are those of the tokens themselves, in rows that are shorter.
        by_view[..., :longest] &= (owners == views) | (owners == NOBODY)
        return mask

    def _own(self, begin: list[int], end: list[int]) -> None:
        """Give the slots of each row from `begin` to `end` to the views that are awake in turn, and
        those after them to no view. A row that has ended may end before it begins."""
        self._grow_owners(max(end))
        changed = [
            (row, slot, self.awake[(slot - first) % self.num_views] if slot < last else NOBODY)
            for row, (first, last) in enumerate(zip(begin, end, strict=True))
            for slot in range(min(first, last), max(first, last))
        ]
        if changed:
            rows, slots, owners = trees.upload(changed, self.device).unbind(1)
            self._owners[rows, slots] = owners.to(torch.int8)

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

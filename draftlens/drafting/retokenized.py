"""Drafts with a model that has another tokenizer than the target: its text is tokenized again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import torch

from draftlens.core.prefill_readings import NO_FEATURES
from draftlens.core.sequence import Batch, replace_by_last
from draftlens.core.tree import DraftTree, Verdict, chain
from draftlens.decoding.plan import TargetContext
from draftlens.drafting.draft_prompt import DraftPromptBuilder
from draftlens.drafting.draft_rows import DraftRows
from draftlens.models.retokenizer import Retokenizer

TARGET_TOKENS = 2  # Most tokens of the target for each token that the draft writes.


class RetokenizedDrafter:
    """A `Drafter` whose model has another tokenizer.

    In each round the text of the answer becomes the draft's tokens, the draft goes on from the
    longest prefix of them that its cache holds, and the greedy chain that it writes becomes tokens
    of the target, which verifies these. What they stand for affects how many are accepted, and no
    answer.

    Args:
        length: tokens that the draft writes in a round.
        vocab_size: of the target.
    """

    readings = NO_FEATURES
    needs_target_scores = False

    def __init__(
        self, prompts: DraftPromptBuilder, retokenizer: Retokenizer, length: int, vocab_size: int
    ) -> None:
        self.prompts = prompts
        self.retokenizer = retokenizer
        self.length = length
        self.vocab_size = vocab_size
        self.max_nodes = TARGET_TOKENS * length
        self.rows = DraftRows(prompts.backbone, prompts.backbone.vocab_size)
        self._held: list[list[int]] = []  # per row, draft tokens of the answer in the cache
        self._eos: list[frozenset[int]] = []  # per row, ids that end the target's answer

    @property
    def forwards(self) -> int:
        return self.rows.forwards

    @property
    def cache_bytes(self) -> int:
        return self.rows.nbytes

    def encode(self, inputs: Mapping[str, Any]) -> Any:
        return self.prompts.encode(inputs)

    def begin(self, batch: Batch, encoded: Any, context: TargetContext) -> None:
        draft = self.prompts.read(encoded, context)
        self.rows.join(draft, batch, context.room + self.length)
        self._held += [[] for _ in range(len(batch))]
        self._eos += [context.eos] * len(batch)

    def propose(self, batch: Batch, budget: int) -> DraftTree:
        proposed: list[list[int]] = [[] for _ in range(len(batch))]
        draft_ids = [self._known(row, batch) for row in range(len(batch))]
        open_rows = [row for row, ids in enumerate(draft_ids) if ids] if budget > 0 else []
        written = self._write(draft_ids, open_rows)
        for row in open_rows:
            tokens = batch.histories[row].tokens
            ids = self.retokenizer.continuation(tokens, draft_ids[row], written[row])
            if self._has_ended(written[row]):
                ids += sorted(self._eos[row])[:1]
            # Tokens that the target does not have, such as an end beyond its vocabulary, end it.
            ids = list(takewhile(self.vocab_size.__gt__, ids))
            proposed[row] = ids[: min(budget, self.max_nodes)]
        counts = list(map(len, proposed))
        table = torch.zeros(len(counts), max(counts, default=0), dtype=torch.long)
        for row, ids in enumerate(proposed):
            table[row, : len(ids)] = torch.tensor(ids, dtype=torch.long)
        return DraftTree(tuple(map(chain, counts)), table)

    def update(self, verdict: Verdict, batch: Batch) -> None:
        """The next round begins with the text of the answers."""

    def remove(self, row: int) -> None:
        self.rows.remove(row)
        replace_by_last(self._held, row)
        replace_by_last(self._eos, row)

    def _known(self, row: int, batch: Batch) -> list[int]:
        """The draft's tokens of a row's answer; the cache keeps what agrees with them, but for the
        last. Empty where there is nothing to go on from."""
        history = batch.histories[row]
        ids = [] if history.finished else self.retokenizer.draft_ids(history.tokens)
        same = 0
        while same < min(len(self._held[row]), len(ids) - 1) and ids[same] == self._held[row][same]:
            same += 1
        del self._held[row][self.rows.truncate(row, same) :]
        return ids

    def _write(self, known: Sequence[list[int]], rows: Sequence[int]) -> list[list[int]]:
        """Greedy chains after the known tokens of some rows."""
        written: list[list[int]] = [[] for _ in known]
        for _ in range(self.length):
            running = [row for row in rows if not self._has_ended(written[row])]
            if not running:
                break
            pending: list[list[int]] = [[] for _ in known]
            for row in running:
                pending[row] = [*known[row], *written[row]][len(self._held[row]) :]
            steps = [[len(self._held[row]) + len(ids)] for row, ids in enumerate(pending)]
            self.rows.begin_round()
            self.rows.pending = pending
            logits = self.rows.catch_up(torch.tensor(steps, device=self.rows.device))
            for row in running:
                self._held[row] += pending[row]
                written[row].append(int(logits[row, len(pending[row]) - 1].argmax()))
        return written

    def _has_ended(self, written: Sequence[int]) -> bool:
        return bool(written) and written[-1] == self.retokenizer.draft_eos

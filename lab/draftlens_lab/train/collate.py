"""Batches from entries: media are read, processors run, and unusable entries are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from draftlens.core.errors import InputError, MediaError, TrainingDataError
from draftlens.media.conversation import Conversation, read, same_processing
from draftlens_lab.train.data import Entry, TrainingData
from draftlens_lab.train.distil import answer_labels
from draftlens_lab.train.draws import Draws
from draftlens_lab.train.labels import IGNORE, AnswerProcessor
from draftlens_lab.train.pruned import select_answers


class Collator:
    """Makes batches of the entries of one file.

    Args:
        target: the processor of the target; None if no target takes part.
        draws: what the draft reads of each entry; None for all of it.
    """

    def __init__(
        self,
        data: TrainingData,
        draft: AnswerProcessor,
        target: AnswerProcessor | None,
        frames: int,
        draws: Draws | None = None,
    ) -> None:
        self.data = data
        self.draft = draft
        self.frames = frames
        self.draws = draws
        self.target = target
        if target is not None and same_processing(target.processor, draft.processor):
            self.target = None  # the draft's tensors serve both models

    def __call__(self, entries: Sequence[Entry]) -> dict[str, Any]:
        """Make a batch.

        Returns:
            The tensors of the draft's processor and ``labels`` int64 ``[B, L]``, all `IGNORE` for
            entries that are not counted. If the target's processor makes other tensors, they are
            under ``target``, with their labels. With draws, ``pruning`` is a `RowPruning` of these
            and of the target's tensors.
        """
        conversations = [self._read(entry) for entry in entries]
        batch = self._process(self.draft, entries, conversations)
        if self.target is not None:
            target_batch = self._process(self.target, entries, conversations)
            draft_tokens = answer_labels(batch["labels"])
            if not torch.equal(draft_tokens, answer_labels(target_batch["labels"])):
                raise TrainingDataError(
                    f"{entries[0].place}: the chat templates of {self.draft.name} and "
                    f"{self.target.name} make different tokens of an answer, so the draft cannot "
                    f"learn the target's logits"
                )
            batch["target"] = target_batch
        return batch

    def _read(self, entry: Entry) -> Conversation:
        try:
            return read(entry.messages(self.data.root), self.frames)
        except MediaError as error:
            raise TrainingDataError(f"{entry.place}: {error}") from error

    def _process(
        self,
        processor: AnswerProcessor,
        entries: Sequence[Entry],
        conversations: Sequence[Conversation],
    ) -> dict[str, Any]:
        try:
            batch = processor(conversations)
        except InputError as error:
            if len(entries) == 1:
                raise TrainingDataError(f"{entries[0].place}: {error}") from error
            # Alone, the entry at fault raises an error that names it.
            for entry, conversation in zip(entries, conversations, strict=True):
                self._process(processor, [entry], [conversation])
            raise
        if self.draws is not None:
            draws = [self.draws.of(entry) for entry in entries]
            batch["pruning"] = select_answers(batch["labels"], draws)
        uncounted = torch.tensor([not entry.counted for entry in entries])
        batch["labels"][uncounted] = IGNORE
        return batch

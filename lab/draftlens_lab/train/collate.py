"""Batches from entries: media are read, processors run, and unusable entries are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from draftlens.core.errors import InputError, MediaError, TrainingDataError
from draftlens.media.conversation import Conversation, read, same_processing
from draftlens_lab.train.data import Entry, TrainingData
from draftlens_lab.train.distil import answer_labels
from draftlens_lab.train.labels import IGNORE, AnswerProcessor


class Collator:
    """Makes batches of the entries of one file.

    Args:
        target: the processor of the target, or None without distillation.
    """

    def __init__(
        self,
        data: TrainingData,
        draft: AnswerProcessor,
        target: AnswerProcessor | None,
        frames: int,
    ) -> None:
        self.data = data
        self.draft = draft
        self.frames = frames
        self.target = target
        if target is not None and same_processing(target.processor, draft.processor):
            self.target = None  # the draft's tensors serve both models

    def __call__(self, entries: Sequence[Entry]) -> dict[str, Any]:
        """Make a batch.

        Returns:
            The tensors of the draft's processor and ``labels`` int64 ``[B, L]``, all `IGNORE` for
            entries that are not counted. If the target's processor makes other tensors, they are
            under ``target``, with their labels.
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
        uncounted = torch.tensor([not entry.counted for entry in entries])
        batch["labels"][uncounted] = IGNORE
        return batch

"""Entries -> batches: media are read, processors run, and what cannot be used is refused with its
place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from draftlens.core.errors import InputError, MediaError, TrainingDataError
from draftlens.media.conversation import Conversation, read, same_processing
from draftlens.train.data import Entry, TrainingData
from draftlens.train.distil import answer_labels
from draftlens.train.labels import IGNORE, AnswerProcessor


class Collator:
    """Makes the batches of one file's entries.

    Args:
        data: where the entries are from.
        draft: the draft's processor.
        target: the processor of the model whose logits are learnt, if any.
        frames: to sample from each video.
    """

    def __init__(
        self,
        data: TrainingData,
        draft: AnswerProcessor,
        target: AnswerProcessor | None,
        frames: int,
    ) -> None:
        self.data, self.draft, self.frames = data, draft, frames
        same = target is not None and same_processing(target.processor, draft.processor)
        self.target = None if same else target

    def __call__(self, entries: Sequence[Entry]) -> dict[str, Any]:
        """A batch for the draft, with the target's own under `target` if its processor makes
        another.

        Returns:
            The processor's tensors and `labels` int64 ``[B, L]``, all `IGNORE` for entries that are
            not counted.

        Raises:
            TrainingDataError: names the entry and the cause.
        """
        conversations = [self._read(entry) for entry in entries]
        batch = self._process(self.draft, entries, conversations)
        if self.target is not None:
            batch["target"] = self._process(self.target, entries, conversations)
            if not torch.equal(
                answer_labels(batch["labels"]), answer_labels(batch["target"]["labels"])
            ):
                raise TrainingDataError(
                    f"{entries[0].place}: the chat templates of {self.draft.name} and "
                    f"{self.target.name} make other "
                    "tokens of an answer, so the one cannot learn the other's logits"
                )
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
            for entry, conversation in zip(entries, conversations, strict=True):
                self._process(processor, [entry], [conversation])  # raises at the one to blame
            raise
        batch["labels"][torch.tensor([not entry.counted for entry in entries])] = IGNORE
        return batch

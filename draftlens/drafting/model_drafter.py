"""A model drafts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftlens.core.batch import Batch
from draftlens.core.tree import Topology
from draftlens.decoding.drafter import TargetContext
from draftlens.drafting.adaptive.history import Tuners
from draftlens.drafting.cached_model import CachedModel
from draftlens.drafting.disagreement import Disagreement
from draftlens.drafting.draft_prompt import Reader
from draftlens.drafting.tree_drafter import TreeDrafter


class ReadingModel(CachedModel):
    """A draft model with the reader of its prompts. It is a `Follower`.

    Args:
        reader: the model and how it reads the prompt.
        vocab_size: ids that the target has; the draft may have more or fewer.
    """

    num_views = 1
    needs_target_scores = False

    def __init__(self, reader: Reader, vocab_size: int) -> None:
        super().__init__(reader.backbone, vocab_size)
        self.reader = reader
        self.readings = reader.readings

    def encode(self, inputs: Mapping[str, Any]) -> Any:
        """See `Drafter.encode`."""
        return self.reader.encode(inputs)

    def join(self, encoded: Any, batch: Batch, context: TargetContext, room: int) -> None:
        """See `Follower.join`."""
        draft = self.reader.read(encoded, context)
        self.read(draft.prompt, draft.fill, room, batch)


class ModelDrafter(TreeDrafter):
    """Drafts with one model, which follows the answers with a cache of its own.

    Args:
        reader: the model and how it reads the prompt.
        topology, tuners, disagreement: as for `TreeDrafter`.
        vocab_size: ids that the target has; the draft may have more or fewer.
    """

    def __init__(
        self,
        reader: Reader,
        topology: Topology,
        vocab_size: int,
        tuners: Tuners | None = None,
        disagreement: Disagreement | None = None,
    ) -> None:
        self.reader = reader
        self.model = ReadingModel(reader, vocab_size)
        super().__init__(self.model, topology, tuners, disagreement)

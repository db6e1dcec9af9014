"""A model drafts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftlens.core.batch import Batch
from draftlens.core.proposal import DraftTree
from draftlens.core.tree import Topology, chain
from draftlens.decoding.drafter import TargetContext
from draftlens.drafting.adaptive.history import Tuners
from draftlens.drafting.cached_model import CachedModel
from draftlens.drafting.disagreement import Disagreement
from draftlens.drafting.draft_prompt import Reader
from draftlens.drafting.growth import grow
from draftlens.drafting.joining_rows import ArrivingRows
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
        self.take(self.arrive(encoded, context, room), batch)

    def arrive(self, encoded: Any, context: TargetContext, room: int) -> ArrivingRows:
        """Read prompts into further rows, which do not join before `take`."""
        draft = self.reader.read(encoded, context)
        return self.read(draft.prompt, draft.fill, room)


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
        self._arriving: ArrivingRows | None = None

    def guess_first(
        self, batch: Batch, inputs: Mapping[str, Any], context: TargetContext, number: int
    ) -> DraftTree:
        """See `FirstGuesser.guess_first`."""
        arriving = self.model.arrive(self.encode(inputs), context, self._room(context))
        self._arriving = arriving
        with context.phase("draft"):
            logits = arriving.catch_up(batch.steps(self.model.device))
            return grow(arriving, chain(number), batch, logits)

    def join_first(self, batch: Batch, context: TargetContext) -> None:
        """See `FirstGuesser.join_first`."""
        assert self._arriving is not None
        self.model.take(self._arriving, batch)
        self._arriving = None
        self._choose_tuner(context)

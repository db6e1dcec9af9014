"""DyCoke on the target: temporal merging before it and dynamic pruning of its cache."""

from __future__ import annotations

from dataclasses import dataclass

from draftlens.core.errors import ConfigError
from draftlens.models.prompt import Prompt
from draftlens.models.prompt_subset import POSITIONS, gather
from draftlens.pruning.base import Visual
from draftlens_lab.bench.lossy.base import Dropping, Recall, check_share
from draftlens_lab.measure.pruning import kept_indices
from draftlens_lab.plugins.temporal_pruners import DyCokePruner


@dataclass(frozen=True)
class DyCokeTarget(Dropping):
    """DyCoke (arXiv 2411.15024) on the target.

    Implemented: stage 1, temporal merging: in groups of four frames, the tokens after the first
    frame that are most like the token at their place a frame before are dropped, which leaves that
    one for both (`DyCokePruner`). Stage 2, dynamic pruning of keys and values while decoding: in
    each step the new token's attention in one layer ranks the visual tokens, and the layers after
    it read the best of them; the others are kept aside and can come back as soon as the attention
    changes.

    Not implemented: the original's order of comparisons in stage 1, which compares frames 1 and 2,
    3 and 4, and then 1 and 3, with one number of tokens for each frame. Here each token is compared
    with the last one at its place, and the budget is shared by all groups.

    Args:
        merge_ratio: K, share of the tokens after the first frames of their groups that are merged.
        layer: L, the layer whose attention ranks, counted from 1.
        prune_ratio: P, share of the merged prompt's visual tokens that the layers after L do not
            read.
        similarity: the choice is kept while the attention of consecutive steps has at least this
            cosine.
        positions: `compact` numbers the merged prompt's positions without gaps, as the original
            does; `original` keeps those of the whole prompt.
    """

    merge_ratio: float = 0.7
    layer: int = 3
    prune_ratio: float = 0.7
    similarity: float = 0.9
    group: int = 4
    positions: str = "compact"

    def __post_init__(self) -> None:
        check_share("merge_ratio", self.merge_ratio)
        DyCokePruner(self.group)
        Recall(self.layer, self.prune_ratio, self.similarity)
        if self.positions not in POSITIONS:
            raise ConfigError(
                f"unknown positions {self.positions!r}; known: {', '.join(POSITIONS)}"
            )

    @property
    def recall(self) -> Recall | None:
        """Stage 2; None if it leaves nothing out."""
        if self.prune_ratio == 0:
            return None
        return Recall(self.layer, self.prune_ratio, self.similarity)

    def shorten(self, prompt: Prompt) -> Prompt:
        """Stage 1."""
        is_visual = prompt.visual[0]
        places = is_visual.nonzero()[:, 0]
        visual = Visual(prompt.cells[0, places], prompt.embeds[0, places])
        mergeable = int((visual.cells[:, 0] % self.group != 0).sum())
        merged = int(self.merge_ratio * mergeable + 1e-9)
        if not merged:
            return prompt
        choice = DyCokePruner(self.group).select(visual, len(visual) - merged)
        return gather(prompt, [kept_indices(is_visual, choice)], self.positions)

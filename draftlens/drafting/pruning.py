"""Applies a pruner to a draft's prompt (SpecVLM, ParallelVLM, and the pruned view of TABED)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftlens.core.errors import UnsupportedModelError
from draftlens.decoding.plan import TargetContext
from draftlens.models.prompt import Prompt
from draftlens.models.prompt_subset import gather
from draftlens.pruning import Choice, Pruner, Visual, keep_count

# Cells with nearest neighbours searched at once, so that no map of all by all is formed.
CELLS_PER_SEARCH = 1024


@dataclass(frozen=True)
class PrunedPrompt:
    """A prompt after pruning."""

    prompt: Prompt
    kept_tokens: list[Tensor]  # per row the indices of the tokens that stay, int64 ``[K]``


@dataclass(frozen=True)
class Pruning:
    """How a draft's prompt is pruned."""

    pruner: Pruner
    ratio: float  # share of visual tokens that are removed, 0 to 1

    def keep(self, prompt: Prompt, context: TargetContext) -> list[Tensor]:
        """Per row the tokens that stay, int64 ``[K]``: text, and the pruner's visual tokens."""
        return [self.keep_in_row(row, prompt, context) for row in range(len(prompt.lengths))]

    def keep_in_row(self, row: int, prompt: Prompt, context: TargetContext) -> Tensor:
        """The tokens of one row that stay, int64 ``[K]``."""
        spec = self.pruner.readings
        is_visual = prompt.visual[row, : prompt.lengths[row]]
        positions = is_visual.nonzero()[:, 0]
        target_scores = spec.scores(context.readings)
        scores = _row_scores(prompt, row, positions, context.prompt, target_scores)
        visual = Visual(prompt.cells[row, positions], prompt.embeds[row, positions], scores)
        indices = self.pruner.select(visual, keep_count(len(positions), self.ratio))
        context.observer.on_choice(Choice(positions, visual, indices, spec.score_name))
        stays = ~is_visual
        stays[positions[indices]] = True
        return stays.nonzero()[:, 0]

    def apply(self, prompt: Prompt, context: TargetContext) -> PrunedPrompt:
        """Prune a prompt, and count its visual tokens before and after for the statistics."""
        with context.observer.phase("prune"):
            kept_tokens = self.keep(prompt, context)
            pruned = gather(prompt, kept_tokens)
        context.observer.on_prune(int(prompt.visual.sum()), int(pruned.visual.sum()))
        return PrunedPrompt(pruned, kept_tokens)


def _row_scores(
    prompt: Prompt,
    row: int,
    positions: Tensor,
    target_prompt: Prompt,
    target_scores: Tensor | None,
) -> Tensor | None:
    """The target's scores, of float32 ``[B, L]``, for the draft's visual tokens ``[n]`` of one row.

    Raises:
        UnsupportedModelError: one of the two has visual tokens in this row and the other has none.
    """
    if target_scores is None:
        return None
    target_positions = target_prompt.visual[row].nonzero()[:, 0]
    scores = target_scores[row, target_positions]
    if len(target_positions) == len(positions):
        return scores.to(positions.device)  # models of a family cut pictures alike
    if not len(target_positions) or not len(positions):
        raise UnsupportedModelError(
            "only one of target and draft has visual tokens: prune without scores of the target"
        )
    target_cells = target_prompt.cells[row, target_positions].cpu()
    carried = _carry_over(scores, target_cells, prompt.cells[row, positions].cpu())
    return carried.to(positions.device)


def _carry_over(scores: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Scores ``[m]`` of cells ``[m, 3]`` at other cells ``[n, 3]``: float32 ``[n]``.

    All frames are stretched to the same size. Each target cell takes the mean score of the source
    cells with their middle in it, or else the score of the nearest cell that has one.
    """
    # A newline shares the cell of the token before it and represents no pixels.
    has_pixels = torch.ones(len(source), dtype=torch.bool)
    has_pixels[1:] = source.diff(dim=0).any(1)
    sizes = _frame_sizes(target)
    pool = _pool(scores.cpu()[has_pixels].float(), source[has_pixels], sizes)
    index = _cell_index(target, sizes)
    carried = pool.means[index, 0]
    missing = pool.counts[index] == 0
    filled = pool.means[pool.counts > 0]
    places = ((target + 0.5) / sizes[target[:, 0]])[missing]
    nearest = [
        torch.cdist(part, filled[:, 1:]).argmin(1) for part in torch.split(places, CELLS_PER_SEARCH)
    ]
    carried[missing] = filled[torch.cat(nearest), 0]
    return carried


@dataclass(frozen=True)
class _Pool:
    """The C cells of some frames with what lies in each."""

    means: Tensor  # mean score and mean place, float32 ``[C, 4]``; NaN for an empty cell
    counts: Tensor  # how many source cells lie in each, int64 ``[C]``


def _pool(scores: Tensor, cells: Tensor, sizes: Tensor) -> _Pool:
    """Pool scores ``[m]`` of cells ``[m, 3]`` over those of frames of other sizes ``[T, 3]``. Means
    are taken, since where one grid does not divide the other, some cells hold more source cells
    than others."""
    # In halves of a cell: whole numbers do not round.
    middles = 2 * cells + 1
    source_sizes = 2 * _frame_sizes(cells)[cells[:, 0]]
    frames = middles[:, 0] * len(sizes) // source_sizes[:, 0]
    index = _cell_index(middles * sizes[frames] // source_sizes, sizes)
    counts = torch.bincount(index, minlength=int(sizes.amax(0).prod()))
    values = torch.cat([scores[:, None], middles / source_sizes], 1)
    sums = torch.zeros(len(counts), 4).index_add_(0, index, values)
    return _Pool(sums / counts[:, None], counts)


def _frame_sizes(cells: Tensor) -> Tensor:
    """The number of frames, and rows and columns of each frame, int64 ``[T, 3]``, of cells
    ``[n, 3]``."""
    num_frames = int(cells[:, 0].max()) + 1
    sizes = cells.new_zeros(num_frames, 3)
    sizes.scatter_reduce_(0, cells[:, :1].expand(-1, 3), cells + 1, "amax")
    sizes[:, 0] = num_frames
    return sizes


def _cell_index(cells: Tensor, sizes: Tensor) -> Tensor:
    """A number for each of the cells ``[n, 3]`` in frames of sizes ``[T, 3]``, int64 ``[n]``."""
    _, height, width = sizes.amax(0).tolist()
    weights = cells.new_tensor([height * width, width, 1])
    return (cells * weights).sum(-1)

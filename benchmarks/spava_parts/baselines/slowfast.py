"""SlowFast-LLaVA (Xu et al. 2024): few frames in detail, and all frames coarsely."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from draftlens.models.prompt import Prompt


@dataclass(frozen=True)
class SlowFast:
    """Pools the features of a clip before the language model reads them.

    The slow pathway is every fifth frame, the larger of two neighbouring features each; the fast
    one is all frames, a mean of each. Both stand one behind the other in place of the clip, and
    positions have no gaps. The authors have 10 of 50 frames with 12 x 24 features and all with
    4 x 4 of 24 x 24, an eighth of all features; a frame of 4 x 4 features has one in the fast
    pathway, which makes it a sixth.

    Args:
        every: one frame in so many is in the slow pathway.
        frame: features of a frame, an even number.
    """

    every: int = 5
    frame: int = 16

    def pooled(self, prompt: Prompt) -> Prompt:
        """A shorter prompt.

        Args:
            prompt: one row with one clip and one axis of positions; a feature behind the last frame
                marks its end and stays.

        Raises:
            ValueError: the prompt is something else.
        """
        places = prompt.visual[0].nonzero()[:, 0]
        if len(prompt.lengths) != 1 or prompt.position_ids.ndim != 2 or len(places) < self.frame:
            raise ValueError("SlowFast reads one clip at a time, and one axis of positions")
        first = int(places[0])
        behind = int(places[-1]) + 1
        num_frames = len(places) // self.frame
        clip = prompt.embeds[0, places[: num_frames * self.frame]]
        end = prompt.embeds[0, places[num_frames * self.frame :]]
        shown = torch.cat([self.slow(clip), self.fast(clip), end])
        embeds = torch.cat([prompt.embeds[0, :first], shown, prompt.embeds[0, behind:]])[None]
        visual = torch.zeros(embeds.shape[:2], dtype=torch.bool)
        visual[0, first : first + len(shown)] = True
        positions = torch.arange(embeds.shape[1])[None]
        return replace(
            prompt,
            embeds=embeds,
            position_ids=positions,
            lengths=[embeds.shape[1]],
            next_position=positions[:, -1:] + 1,
            visual=visual,
        )

    def slow(self, clip: Tensor) -> Tensor:
        """Features ``[F·N, D]`` to those of the slow pathway, ``[ceil(F / every)·N/2, D]``."""
        frames = clip.view(-1, self.frame // 2, 2, clip.shape[-1])
        return frames[:: self.every].amax(2).flatten(0, 1)

    def fast(self, clip: Tensor) -> Tensor:
        """Features ``[F·N, D]`` to those of the fast pathway, ``[F, D]``."""
        return clip.view(-1, self.frame, clip.shape[-1]).mean(1)

"""Teaching the first layers of a language model to watch: to see, in a video's tokens, what moves and how.

A vision tower sees one frame at a time. What a thing does is only in the comparison of frames, and captions alone
teach that slowly: a model that names everything rightly still guesses at motions. So the first layers learn, from
scenes without a word, to say in the tokens of the last frame what the thing in that quarter has done. The head that
says so is thrown away afterwards.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from draftlens.train.pair.data import Mix, pixels
from draftlens.train.pair.loop import Job, Phase
from draftlens.train.pair.models import FRAME_TOKENS, SIDE
from draftlens.train.pair.sight import by_quarter
from draftlens.train.pair.tokenizer import START, VIDEO
from draftlens.train.world import render, sample_scene
from draftlens.train.world.scene import MOTIONS, PLACES, Scene


@dataclass(frozen=True)
class Film:
    """Videos and what happens in them."""

    frames: torch.Tensor  # [B, T, 3, S, S] float32
    motions: torch.Tensor  # [B, Q] int64, len(MOTIONS) where a quarter is empty


class Watching(nn.Module):
    """What is trained: the first ``depth`` layers, and the head that is thrown away."""

    def __init__(self, model: Any, depth: int) -> None:
        super().__init__()
        self.layers = model.model.language_model.layers[:depth]
        self.head = nn.Linear(model.config.text_config.hidden_size, len(MOTIONS) + 1)


def _motions(scene: Scene) -> list[int]:
    at = {thing.place: MOTIONS.index(thing.motion) for thing in scene.things}
    return [at.get(place, len(MOTIONS)) for place in PLACES]


def films(mix: Mix, seed: int, start: int) -> Iterator[Film]:
    """Endless batches, the same for the same seed."""
    for step in range(start, 2**31):
        rng = np.random.default_rng([seed, step, 8])
        count = int(rng.choice(mix.frames, p=mix.share))
        scenes = [sample_scene(step * mix.batch + i) for i in range(mix.batch)]
        frames = pixels(np.stack([render(scene, count, SIDE) for scene in scenes]))
        yield Film(frames, torch.tensor([_motions(scene) for scene in scenes]))


def watch_job(model: Any, tokenizer: Any, phase: Phase, mix: Mix, seed: int, depth: int) -> Job[Film]:
    """Trains the model's first ``depth`` layers in place; the tower and all else stay as they are."""
    model.set_attn_implementation("eager")
    torch.manual_seed(seed)
    watching = Watching(model, depth)
    before = tokenizer(f"{START}user\n").input_ids  # a user turn begins with these, then the video
    video = tokenizer.convert_tokens_to_ids(VIDEO)
    model.requires_grad_(False)
    watching.requires_grad_(True)

    def loss(film: Film) -> tuple[torch.Tensor, float]:
        ids = torch.tensor([before + [video] * (film.frames.shape[1] * FRAME_TOKENS + 1)])
        states = _early_states(model, ids.expand(len(film.frames), -1), film.frames, depth)
        last = states[:, -FRAME_TOKENS - 1 : -1]  # the last token is the newline
        scores = by_quarter(watching.head(last.float()))  # [B, Q, 4, motions]
        wanted = film.motions[..., None].expand(-1, -1, 4)
        there = wanted != len(MOTIONS)
        right = (scores.argmax(-1) == wanted)[there].float().mean()
        return F.cross_entropy(scores.flatten(0, 2), wanted.flatten()), float(right)

    def count(film: Film) -> int:
        return len(film.frames) * (film.frames.shape[1] * FRAME_TOKENS + len(before) + 1)

    return Job(phase, watching, lambda start: films(mix, seed, start), loss, count)


def _early_states(model: Any, ids: torch.Tensor, frames: torch.Tensor, depth: int) -> torch.Tensor:
    """Hidden states ``[B, L, D]`` after the first ``depth`` layers and the final norm."""
    config = model.model.language_model.config
    whole = config.num_hidden_layers
    config.num_hidden_layers = depth
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model.model(input_ids=ids, pixel_values_videos=frames, use_cache=False)
    finally:
        config.num_hidden_layers = whole
    states: torch.Tensor = out.last_hidden_state
    return states

"""Teaching a vision tower to see before the language model reads from it, as every tower of this
architecture is.

Trained together from nothing, the pair's language model learns the captions' wording and leaves its
eyes shut: that alone predicts five tokens of six. So tower and projector first learn to name, from
each of a frame's 16 pooled cells, the background, the cell's quarter and what lives there (colour,
shape, texture, place and radius); and from the four cells at the bottom, the text. The heads that
say so are thrown away afterwards.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from draftlens.world import frame_times, render_at, sample_sparse
from draftlens.world.motion import pose
from draftlens.world.scene import (
    BACKGROUNDS,
    COLOURS,
    PATTERNS,
    PLACES,
    SHAPES,
    TEXT_COLOURS,
    TEXTURES,
    WORDS,
    Scene,
    Shot,
    Text,
)
from recipes.pair.data import pixels
from recipes.pair.models import SIDE

GRID = 16  # frames of which some are shown
FRAMES = 2  # of each scene
SCALE = 6.0  # offsets and radii are some tenths of picture units: this brings them near 1
HIDDEN = -100  # behind a card: not asked
CARRIERS = ("nothing", "word", "number", "strip", "card")

# Names with one answer a frame, asked of every cell; a quarter, asked of its four cells; the text,
# of the bottom row.
EVERYWHERE = {"background": len(BACKGROUNDS), "pattern": len(PATTERNS)}
QUARTERS = {"colour": len(COLOURS) + 1, "shape": len(SHAPES) + 1, "texture": len(TEXTURES) + 1}
BOTTOM = {
    "carrier": len(CARRIERS),
    "word": len(WORDS),
    "tens": 10,
    "ones": 10,
    "ink": len(TEXT_COLOURS),
}

Labels = dict[
    str, torch.Tensor
]  # a row a frame: [N], [N, 4] for quarters, "where" [N, 4, 3]; HIDDEN is not asked


class Namer(nn.Module):
    """Linear heads on the normalised visual tokens: the language model's layers begin by the same
    normalisation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.sizes = {**EVERYWHERE, **QUARTERS, **BOTTOM, "where": 3, "quarter": len(PLACES)}
        self.head = nn.Linear(width, sum(self.sizes.values()))

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        """``[N, 16, D]`` visual tokens to scores ``[N, 16, ...]`` by name."""
        scores = self.head(F.rms_norm(tokens.float(), (self.width,)))
        return dict(
            zip(self.sizes, torch.split(scores, list(self.sizes.values()), dim=-1), strict=True)
        )


def by_quarter(cells: torch.Tensor) -> torch.Tensor:
    """A frame's 16 cells ``[N, 16, D]`` in reading order to ``[N, 4, 4, D]``: quarter, cell in
    it."""
    grid = cells.view(
        -1, 2, 2, 2, 2, cells.shape[-1]
    )  # row half, row in it, column half, column in it
    return grid.permute(0, 1, 3, 2, 4, 5).reshape(len(cells), 4, 4, -1)


def label(scene: Scene, time: float) -> dict[str, Any]:
    """What can be seen at a clip time."""
    shot = next(shot for shot in scene.shots if time < shot.end or shot.end >= 1)
    text = next((text for text in scene.texts if text.start <= time < text.end), None)
    if text is not None and text.carrier == "card":
        things = {**dict.fromkeys(EVERYWHERE, HIDDEN), **_no_things()}
    else:
        within = (time - shot.start) / (shot.end - shot.start)
        plain = {
            "background": BACKGROUNDS.index(shot.background),
            "pattern": PATTERNS.index(shot.pattern),
        }
        things = {**plain, **_things(shot, within)}
    return {**things, **_text(text)}


def _no_things() -> dict[str, Any]:
    none = {"colour": len(COLOURS), "shape": len(SHAPES), "texture": len(TEXTURES)}
    return {
        **{name: [value] * 4 for name, value in none.items()},
        "where": [[0.0] * 3 for _ in PLACES],
    }


def _things(shot: Shot, time: float) -> dict[str, Any]:
    found = _no_things()
    for thing in shot.things:
        x, y, radius = pose(thing, shot, time)
        if not -0.3 * radius < x < 1 + 0.3 * radius:
            continue  # hardly anything of it is inside the picture
        quarter = PLACES.index(thing.place)
        found["colour"][quarter] = COLOURS.index(thing.colour)
        found["shape"][quarter] = SHAPES.index(thing.shape)
        found["texture"][quarter] = TEXTURES.index(thing.texture)
        found["where"][quarter] = [SCALE * (x - 0.5), SCALE * (y - 0.5), SCALE * radius]
    return found


def _text(text: Text | None) -> dict[str, int]:
    said = dict.fromkeys(BOTTOM, HIDDEN) | {"carrier": 0}
    if text is None:
        return said
    said["carrier"] = CARRIERS.index(text.carrier if text.kind == "secret" else text.kind)
    if text.kind == "number":
        said |= {"tens": int(text.value[0]), "ones": int(text.value[1])}
    else:
        said["word"] = WORDS.index(text.value)
    if text.kind != "secret":
        said["ink"] = TEXT_COLOURS.index(text.colour)
    return said


def sights(seed: int, scenes: int, start: int) -> Iterator[tuple[torch.Tensor, Labels]]:
    """Endless frames ``[N, 3, S, S]`` with their labels; every scene gives FRAMES random ones of
    GRID."""
    for step in range(start, 2**31):
        rng = np.random.default_rng([seed, step, 7])
        frames, labels = [], []
        for i in range(scenes):
            scene = sample_sparse(step * scenes + i)
            times = sorted(frame_times(GRID)[int(at)] for at in rng.permutation(GRID)[:FRAMES])
            frames.append(render_at(scene, times, SIDE))
            labels += [label(scene, time) for time in times]
        columns = {name: torch.tensor([row[name] for row in labels]) for name in labels[0]}
        yield _blurred(pixels(np.concatenate(frames)), rng), columns


def _blurred(frames: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Some frames a little soft and noisy, as those of a compressed file of another size are."""
    soft = F.avg_pool2d(F.pad(frames, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    share = torch.from_numpy(
        rng.uniform(0, 0.5, len(frames)) * (rng.random(len(frames)) < 0.4)
    ).float()
    noise = torch.from_numpy(rng.standard_normal(frames.shape, dtype=np.float32)) * 0.06
    share = share[:, None, None, None]
    return frames + share * (soft - frames) + noise * (share > 0)


def sight_loss(namer: Namer, tokens: torch.Tensor, labels: Labels) -> tuple[torch.Tensor, float]:
    """Summed losses of all heads, and the share of frames' things and texts that were named
    rightly."""
    scores = namer(tokens)
    loss = F.cross_entropy(
        by_quarter(scores["quarter"]).flatten(0, 2), _own_quarter(len(tokens)).to(tokens.device)
    )
    rights = []
    for name in EVERYWHERE:
        loss = loss + F.cross_entropy(
            scores[name].flatten(0, 1), labels[name].repeat_interleave(16)
        )
    for name in QUARTERS:
        asked = by_quarter(scores[name])
        loss = loss + F.cross_entropy(
            asked.flatten(0, 2), labels[name].flatten().repeat_interleave(4)
        )
        rights.append(
            (asked.argmax(-1) == labels[name][..., None])[labels["texture"] < len(TEXTURES)]
        )
    for name in BOTTOM:
        asked = scores[name][:, 12:]
        loss = loss + F.cross_entropy(asked.flatten(0, 1), labels[name].repeat_interleave(4))
    there = labels["texture"] < len(TEXTURES)
    where = by_quarter(scores["where"])[there]
    loss = loss + 2 * F.smooth_l1_loss(
        where, labels["where"][there][:, None].expand(-1, 4, -1), beta=0.1
    )
    things = torch.stack(rights).all(0).float().mean()
    return loss, float((things + _texts_right(scores, labels)) / 2)


def _own_quarter(frames: int) -> torch.Tensor:
    return torch.arange(4)[None, :, None].expand(frames, 4, 4).flatten()


def _texts_right(scores: dict[str, torch.Tensor], labels: Labels) -> torch.Tensor:
    """The share of frames with a text of which every cell of the bottom row says every part
    rightly."""
    right = [
        (
            (scores[name][:, 12:].argmax(-1) == labels[name][:, None])
            | (labels[name] == HIDDEN)[:, None]
        ).all(-1)
        for name in BOTTOM
    ]
    return torch.stack(right).all(0)[labels["carrier"] > 0].float().mean()


def visual_tokens(model: Any, frames: torch.Tensor) -> torch.Tensor:
    """Frames ``[N, 3, S, S]`` to the visual tokens ``[N, 16, D]`` that the language model would
    read."""
    with torch.autocast(frames.device.type, dtype=torch.bfloat16):
        tokens: torch.Tensor = model.model.get_video_features(frames[:, None]).pooler_output
    return tokens[:, :-1]  # the last one is the newline

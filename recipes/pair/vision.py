"""Training of the vision encoder before the language model, as usual for this architecture.

If both are trained together from random weights, the language model learns the wording of the
captions, which predicts five of six tokens, and ignores the picture. So vision encoder and
projector are first trained on frames alone. From each of a frame's 16 pooled cells, linear heads
predict the background, the cell's quarter, and the thing in this quarter (colour, shape, texture,
position and radius). From the four cells of the bottom row they also predict the text. The heads
are discarded afterwards.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from draftlens_lab.world import frame_times, render_at, sample_sparse
from draftlens_lab.world.motion import pose
from draftlens_lab.world.scene import (
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
from torch import nn

from recipes.pair.data import IGNORED, pixels
from recipes.pair.loop import StepResult
from recipes.pair.models import SIDE

TIMES_PER_SCENE = 16  # times of a scene from which frames are drawn
FRAMES_PER_SCENE = 2
SCALE = 6.0  # brings offsets and radii, which are tenths of picture units, near 1
POSITION_WEIGHT = 2  # of the loss of positions and radii
VISIBLE_MARGIN = 0.3  # share of its radius by which a thing may be outside the picture
BOTTOM_CELLS = slice(12, 16)  # the cells of the bottom row
CARRIERS = ("nothing", "word", "number", "strip", "card")

# Number of classes of each label: of the whole frame, of a quarter, and of the text.
FRAME_CLASSES = {"background": len(BACKGROUNDS), "pattern": len(PATTERNS)}
QUARTER_CLASSES = {
    "colour": len(COLOURS) + 1,
    "shape": len(SHAPES) + 1,
    "texture": len(TEXTURES) + 1,
}
TEXT_CLASSES = {
    "carrier": len(CARRIERS),
    "word": len(WORDS),
    "tens": 10,
    "ones": 10,
    "ink": len(TEXT_COLOURS),
}

# One row per frame: [N]; [N, 4] for labels of quarters; "where" float [N, 4, 3]. IGNORED where a
# label does not apply.
Labels = dict[str, torch.Tensor]


@dataclass(frozen=True)
class FrameBatch:
    """Frames float32 ``[N, 3, S, S]`` and their labels."""

    frames: torch.Tensor
    labels: Labels


class FrameClassifier(nn.Module):
    """Linear heads on the visual tokens.

    The tokens are normalised first, as in the first layer of the language model.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.sizes = {
            **FRAME_CLASSES,
            **QUARTER_CLASSES,
            **TEXT_CLASSES,
            "where": 3,
            "quarter": len(PLACES),
        }
        self.head = nn.Linear(width, sum(self.sizes.values()))

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        """Scores ``[N, 16, ...]`` by name, for visual tokens ``[N, 16, D]``."""
        scores = self.head(F.rms_norm(tokens.float(), (self.width,)))
        parts = torch.split(scores, list(self.sizes.values()), dim=-1)
        return dict(zip(self.sizes, parts, strict=True))


def by_quarter(cells: torch.Tensor) -> torch.Tensor:
    """Regroup a frame's cells ``[N, 16, D]``, in reading order, as ``[N, 4, 4, D]``.

    The second dimension is the quarter of the frame, the third is the cell in it.
    """
    # Half of the rows, row in it, half of the columns, column in it.
    grid = cells.view(-1, 2, 2, 2, 2, cells.shape[-1])
    return grid.permute(0, 1, 3, 2, 4, 5).reshape(len(cells), 4, 4, -1)


def cell_loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of cells that share a label.

    Args:
        scores: float ``[..., K, C]``, for K cells each.
        labels: int64 ``[...]``, or `IGNORED`; the loss is 0 if all are.
    """
    num_cells = scores.shape[-2]
    targets = labels.flatten().repeat_interleave(num_cells)
    total = F.cross_entropy(scores.flatten(0, -2), targets, reduction="sum")
    return total / (targets != IGNORED).sum().clamp(min=1)


def frame_labels(scene: Scene, time: float) -> dict[str, Any]:
    """The labels of the frame at a time of a scene."""
    shot = next(shot for shot in scene.shots if time < shot.end or shot.end >= 1)
    text = next((text for text in scene.texts if text.start <= time < text.end), None)
    if text is not None and text.carrier == "card":  # the card covers the whole picture
        background = dict.fromkeys(FRAME_CLASSES, IGNORED)
        return {**background, **_empty_quarters(), **_text_labels(text)}
    background = {
        "background": BACKGROUNDS.index(shot.background),
        "pattern": PATTERNS.index(shot.pattern),
    }
    shot_time = (time - shot.start) / (shot.end - shot.start)
    return {**background, **_quarter_labels(shot, shot_time), **_text_labels(text)}


def frame_batches(seed: int, scenes: int, start: int) -> Iterator[FrameBatch]:
    """Endless batches of random frames, beginning with number ``start``."""
    for step in range(start, 2**31):
        rng = np.random.default_rng([seed, step, 7])
        frames = []
        rows = []
        for index in range(scenes):
            scene = sample_sparse(step * scenes + index)
            times = _random_times(rng)
            frames.append(render_at(scene, times, SIDE))
            rows += [frame_labels(scene, time) for time in times]
        labels = {name: torch.tensor([row[name] for row in rows]) for name in rows[0]}
        yield FrameBatch(_degraded(pixels(np.concatenate(frames)), rng), labels)


def frame_loss(classifier: FrameClassifier, tokens: torch.Tensor, labels: Labels) -> StepResult:
    """Summed losses of all heads, and the mean accuracy of things and texts.

    Args:
        classifier: the heads.
        tokens: visual tokens ``[N, 16, D]``.
        labels: of the frames.
    """
    scores = classifier(tokens)
    quarters = {name: by_quarter(scores[name]) for name in (*QUARTER_CLASSES, "where", "quarter")}
    bottom = {name: scores[name][:, BOTTOM_CELLS] for name in TEXT_CLASSES}
    quarter_indices = torch.arange(4, device=tokens.device).expand(len(tokens), 4)
    losses = [cell_loss(quarters["quarter"], quarter_indices)]
    losses += [cell_loss(scores[name], labels[name]) for name in FRAME_CLASSES]
    losses += [cell_loss(quarters[name], labels[name]) for name in QUARTER_CLASSES]
    losses += [cell_loss(bottom[name], labels[name]) for name in TEXT_CLASSES]
    losses.append(POSITION_WEIGHT * _position_loss(quarters["where"], labels))
    accuracy = (_thing_accuracy(quarters, labels) + _text_accuracy(bottom, labels)) / 2
    return StepResult(reduce(torch.add, losses), float(accuracy))


def visual_tokens(model: Any, frames: torch.Tensor) -> torch.Tensor:
    """The language model's visual tokens ``[N, 16, D]`` of frames ``[N, 3, S, S]``."""
    with torch.autocast(frames.device.type, dtype=torch.bfloat16):
        tokens: torch.Tensor = model.model.get_video_features(frames[:, None]).pooler_output
    return tokens[:, :-1]  # the last token is the newline


def _empty_quarters() -> dict[str, Any]:
    """The labels of a frame without things."""
    return {
        "colour": [len(COLOURS)] * 4,
        "shape": [len(SHAPES)] * 4,
        "texture": [len(TEXTURES)] * 4,
        "where": [[0.0] * 3 for _ in PLACES],
    }


def _quarter_labels(shot: Shot, time: float) -> dict[str, Any]:
    """The labels of the quarters at a time of a shot."""
    labels = _empty_quarters()
    for thing in shot.things:
        x, y, radius = pose(thing, shot, time)
        margin = VISIBLE_MARGIN * radius
        if not -margin < x < 1 + margin:
            continue  # almost all of the thing is outside the picture
        quarter = PLACES.index(thing.place)
        labels["colour"][quarter] = COLOURS.index(thing.colour)
        labels["shape"][quarter] = SHAPES.index(thing.shape)
        labels["texture"][quarter] = TEXTURES.index(thing.texture)
        labels["where"][quarter] = [SCALE * (x - 0.5), SCALE * (y - 0.5), SCALE * radius]
    return labels


def _text_labels(text: Text | None) -> dict[str, int]:
    """The labels of a text; those of its parts are `IGNORED` without a text."""
    labels = dict.fromkeys(TEXT_CLASSES, IGNORED)
    if text is None:
        labels["carrier"] = CARRIERS.index("nothing")
        return labels
    is_secret = text.kind == "secret"
    labels["carrier"] = CARRIERS.index(text.carrier if is_secret else text.kind)
    if text.kind == "number":
        labels["tens"] = int(text.value[0])
        labels["ones"] = int(text.value[1])
    else:
        labels["word"] = WORDS.index(text.value)
    if not is_secret:
        labels["ink"] = TEXT_COLOURS.index(text.colour)
    return labels


def _random_times(rng: np.random.Generator) -> list[float]:
    """Distinct times of a scene, in order."""
    times = frame_times(TIMES_PER_SCENE)
    indices = rng.permutation(TIMES_PER_SCENE)[:FRAMES_PER_SCENE]
    return sorted(times[int(index)] for index in indices)


def _degraded(frames: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Frames of which some are slightly blurred and noisy, like those of a compressed file."""
    padded = F.pad(frames, (1, 1, 1, 1), mode="replicate")
    blurred = F.avg_pool2d(padded, 3, stride=1)
    shares = rng.uniform(0, 0.5, len(frames)) * (rng.random(len(frames)) < 0.4)
    share = torch.from_numpy(shares).float()[:, None, None, None]
    noise = torch.from_numpy(rng.standard_normal(frames.shape, dtype=np.float32)) * 0.06
    return frames + share * (blurred - frames) + noise * (share > 0)


def _has_thing(labels: Labels) -> torch.Tensor:
    """Whether there is a thing in each quarter, bool ``[N, 4]``."""
    return labels["texture"] < len(TEXTURES)


def _position_loss(positions: torch.Tensor, labels: Labels) -> torch.Tensor:
    """The loss of predicted positions and radii ``[N, 4, 4, 3]``."""
    has_thing = _has_thing(labels)
    targets = labels["where"][has_thing][:, None].expand(-1, 4, -1)
    return F.smooth_l1_loss(positions[has_thing], targets, beta=0.1)


def _thing_accuracy(quarters: dict[str, torch.Tensor], labels: Labels) -> torch.Tensor:
    """The share of cells of things whose labels are all predicted correctly."""
    correct = []
    for name in QUARTER_CLASSES:
        matches = quarters[name].argmax(-1) == labels[name][..., None]
        correct.append(matches[_has_thing(labels)])
    return torch.stack(correct).all(0).float().mean()


def _text_accuracy(bottom: dict[str, torch.Tensor], labels: Labels) -> torch.Tensor:
    """The share of frames with a text that every cell of the bottom row predicts correctly."""
    correct = []
    for name in TEXT_CLASSES:
        matches = bottom[name].argmax(-1) == labels[name][:, None]
        is_ignored = (labels[name] == IGNORED)[:, None]
        correct.append((matches | is_ignored).all(-1))
    has_text = labels["carrier"] > 0
    return torch.stack(correct).all(0)[has_text].float().mean()

"""Teaching the first layers of a language model to watch: to see, in a video's tokens, what happens
over time.

A vision tower sees one frame at a time. What a thing does is only in the comparison of frames, and
captions alone teach that slowly: a model that names everything rightly still guesses at motions. So
while it learns to tell, its first layers also learn to say, in the tokens of a shot's last frames,
what the thing in that quarter has done and how the camera has moved, and in the tokens of every
frame how many texts have been shown so far and which shot it is. The head that says so is thrown
away afterwards.

Taught before telling instead of beside it, the same left the model blind: its words never began to
look at what its first layers had become.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from draftlens.world import frame_times
from draftlens.world.scene import CAMERAS, PLACES, Scene
from draftlens.world.wording import ACTIONS
from recipes.pair.data import Batch, Mix, collate, plans
from recipes.pair.jobs import telling_job
from recipes.pair.loop import Job, Phase
from recipes.pair.models import FRAME_TOKENS
from recipes.pair.sight import by_quarter
from recipes.pair.tokenizer import VIDEO

DEEDS = tuple(ACTIONS)
WEIGHT = 0.3  # of watching beside telling
HIDDEN = -100  # frames that are not asked
SIZES = {"deeds": len(DEEDS) + 1, "camera": len(CAMERAS), "texts": 5, "shot": 2}


@dataclass(frozen=True)
class Film:
    """Videos and what happens in them; HIDDEN where it is not asked."""

    frames: torch.Tensor  # [B, T, 3, S, S] float32
    deeds: torch.Tensor  # [B, T, 4] int64, late in each shot; len(DEEDS) where a quarter is empty
    camera: torch.Tensor  # [B, T] int64, late in each shot
    texts: torch.Tensor  # [B, T] int64, texts that have begun so far
    shot: torch.Tensor  # [B, T] int64


class Watching(nn.Module):
    """What is trained: the model, and the head that is thrown away."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.width = model.config.text_config.hidden_size
        self.head = nn.Linear(self.width, sum(SIZES.values()))

    def forward(self, states: torch.Tensor) -> dict[str, torch.Tensor]:
        """``[B, T, 16, D]`` states of the visual tokens to scores by name."""
        scores = self.head(F.rms_norm(states.float(), (self.width,)))
        return dict(zip(SIZES, torch.split(scores, list(SIZES.values()), dim=-1), strict=True))


def story(scene: Scene, count: int, since: float = 1.0) -> dict[str, Any]:
    """What a film of ``count`` frames is asked about, frame by frame; of deeds from this time of
    each shot on."""
    times = frame_times(count)
    shots = [
        next(i for i, shot in enumerate(scene.shots) if t < shot.end or shot.end >= 1)
        for t in times
    ]
    deeds, camera = [[HIDDEN] * 4 for _ in times], [HIDDEN] * count
    for i, shot in enumerate(scene.shots):
        own = [at for at, other in enumerate(shots) if other == i]
        done = {
            thing.place: DEEDS.index(f"{thing.motion} {thing.when}".strip())
            for thing in shot.things
        }
        for at in own:
            if at == own[-1] or times[at] >= shot.start + since * (shot.end - shot.start):
                deeds[at] = [done.get(place, len(DEEDS)) for place in PLACES]
                camera[at] = CAMERAS.index(shot.camera)
    texts = [sum(text.start <= t for text in scene.texts) for t in times]
    return {"deeds": deeds, "camera": camera, "texts": texts, "shot": shots}


def watched(
    tokenizer: Any, mix: Mix, seed: int, since: float, start: int
) -> Iterator[tuple[Batch, Film | None]]:
    """Endless batches to tell of, clips among them with what happens in them; the same for the same
    seed."""
    for samples, count in plans(mix, seed, start):
        batch = collate(tokenizer, samples, count)
        if samples[0].kind != "clip":
            yield batch, None
            continue
        stories = [story(sample.scenes[0], count, since) for sample in samples]
        told = {name: torch.tensor([one[name] for one in stories]) for name in SIZES}
        yield batch, Film(batch["pixel_values_videos"], **told)


def watching_job(
    model: Any, tokenizer: Any, phase: Phase, mix: Mix, seed: int, depth: int, since: float = 1.0
) -> Job[Any]:
    """Trains the model to tell, in place, and its first ``depth`` layers to watch as well.

    What happens in a shot is asked of its frames from the shot time ``since`` on, at 1 of the last
    one only: the more frames know, the sooner words find one that does.
    """
    telling = telling_job(model, tokenizer, phase, mix, seed)  # says what is trained and how
    torch.manual_seed(seed)
    watching = Watching(model).to(model.device)
    video = tokenizer.convert_tokens_to_ids(VIDEO)

    def loss(pair: tuple[Batch, Film | None]) -> tuple[torch.Tensor, float]:
        batch, film = pair
        with _early_states(model, depth) as states:
            told, right = telling.loss(batch)
        if film is None:
            return told, right
        count = film.frames.shape[1]
        first = int(
            (batch["input_ids"][0] == video).to(torch.uint8).argmax()
        )  # the same in every row
        seen = states[0][:, first : first + count * FRAME_TOKENS]
        seen_loss, _ = film_loss(watching(seen.reshape(len(seen), count, FRAME_TOKENS, -1)), film)
        return told + WEIGHT * seen_loss, right

    return Job(
        phase,
        watching,
        lambda start: watched(tokenizer, mix, seed, since, start),
        loss,
        lambda pair: pair[0]["input_ids"].numel(),
    )


@contextmanager
def _early_states(model: Any, depth: int) -> Iterator[list[torch.Tensor]]:
    """Collects the hidden states ``[B, L, D]`` after the first ``depth`` layers of forwards inside
    it."""
    states: list[torch.Tensor] = []
    layer = model.model.language_model.layers[depth - 1]
    handle = layer.register_forward_hook(
        lambda _, __, out: states.append(out[0] if isinstance(out, tuple) else out)
    )
    try:
        yield states
    finally:
        handle.remove()


def film_loss(scores: dict[str, torch.Tensor], film: Film) -> tuple[torch.Tensor, float]:
    """Summed losses, and the mean of the shares of deeds and of counts of texts that are right."""
    batch, count = film.texts.shape
    deeds = by_quarter(scores["deeds"].flatten(0, 1)).reshape(
        batch, count, 4, 4, -1
    )  # [B, T, Q, 4, deeds]
    wanted = film.deeds[..., None].expand(-1, -1, -1, 4)
    loss = F.cross_entropy(deeds.flatten(0, 3), wanted.flatten())
    camera = film.camera[..., None].expand(-1, -1, FRAME_TOKENS)
    loss = loss + F.cross_entropy(scores["camera"].flatten(0, 2), camera.flatten())
    bottom = scores["texts"][:, :, 12:]
    texts = film.texts[..., None].expand(-1, -1, 4)
    loss = loss + F.cross_entropy(bottom.flatten(0, 2), texts.flatten())
    shot = film.shot[..., None].expand(-1, -1, FRAME_TOKENS)
    loss = loss + F.cross_entropy(scores["shot"].flatten(0, 2), shot.flatten())
    there = (wanted != HIDDEN) & (wanted != len(DEEDS))
    right = (deeds.argmax(-1) == wanted)[there].float().mean() + (
        bottom.argmax(-1) == texts
    ).float().mean()
    return loss, float(right / 2)

"""Training batches: scenes, dialogues about them, and the tensors that the processor would have made of them.

The processor is the truth of how a sample becomes tensors; this file is its fast path, and
:func:`check_fast_path` compares the two before any training starts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from draftlens.train.pair.models import FRAME_TOKENS, PATCHES, SIDE
from draftlens.train.pair.tokenizer import IMAGE, VIDEO, chat
from draftlens.train.world import Scene, Turn, describe, questions, render, sample_scene, sample_still

MEAN = (0.48145466, 0.4578275, 0.40821073)  # CLIP's, which the OneVision processors normalise by
STD = (0.26862954, 0.26130258, 0.27577711)
IMAGE_TOKENS = PATCHES + PATCHES + SIDE // 8  # the whole picture, its one tile, and a newline for each row of patches
IGNORED = -100
POOL = 16  # batches that are drawn together, so that samples of like length can share a batch
STILL_BATCHES = 3  # of a pool's batches

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Mix:
    """How many frames videos have: ``share[i]`` of the batches have ``frames[i]``; ``batch`` samples each."""

    frames: tuple[int, ...]
    share: tuple[float, ...]
    batch: int = 32


def dialogue(scene: Scene, still: bool) -> list[Turn]:
    """What is said about a training scene: the caption, alone or after short questions, or five questions alone."""
    rng = np.random.default_rng([scene.seed, 2])
    whole, asked = describe(scene, rng, still), questions(scene, still)
    kind = rng.random()
    count = 0 if kind < 0.4 else 5 if kind > 0.8 else int(rng.integers(1, 5))
    turns = [asked[int(i)] for i in rng.permutation(len(asked))[:count]]
    return turns if kind > 0.8 else [*turns, whole]


def encode(tokenizer: Any, turns: list[Turn], still: bool, num_frames: int) -> tuple[list[int], list[int]]:
    """Token ids and labels (IGNORED outside the answers) of a dialogue about one picture or video."""
    media = IMAGE if still else VIDEO
    holder = tokenizer.convert_tokens_to_ids(media)
    width = IMAGE_TOKENS if still else num_frames * FRAME_TOKENS + 1
    ids: list[int] = []
    labels: list[int] = []
    for text, answer in chat(media, turns):
        for token in tokenizer(text).input_ids:
            piece = [token] * (width if token == holder else 1)
            ids += piece
            labels += piece if answer else [IGNORED] * len(piece)
    return ids, labels


def pixels(frames: NDArray[np.uint8]) -> torch.Tensor:
    """Frames ``[..., S, S, 3]`` uint8 to normalised ``[..., 3, S, S]`` float32."""
    x = torch.from_numpy(frames).movedim(-1, -3).float() / 255
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))
    return (x - mean) / std


def collate(
    rows: list[tuple[list[int], list[int]]], scenes: list[Scene], still: bool, num_frames: int, pad: int
) -> Batch:
    """One batch, padded on the right: under a causal mask no real token sees the padding, so no mask is needed."""
    longest = max(len(ids) for ids, _ in rows)
    batch: Batch = {
        "input_ids": torch.tensor([ids + [pad] * (longest - len(ids)) for ids, _ in rows]),
        "labels": torch.tensor([labels + [IGNORED] * (longest - len(labels)) for _, labels in rows]),
    }
    frames = np.stack([render(scene, 1 if still else num_frames, SIDE) for scene in scenes])
    values = pixels(frames)
    if still:
        batch["pixel_values"] = values.expand(-1, 2, -1, -1, -1)  # the whole picture and its only tile are the same
        batch["image_sizes"] = torch.full((len(scenes), 2), SIDE)
    else:
        batch["pixel_values_videos"] = values
    return batch


def batches(tokenizer: Any, mix: Mix, seed: int, start: int) -> Iterator[Batch]:
    """Endless batches, the same for the same seed; ``start`` skips that many (to resume)."""
    for pool in range(start // POOL, 2**31):
        skip = start % POOL if pool == start // POOL else 0
        for plan in _plan(tokenizer, mix, seed, pool)[skip:]:
            rows, scenes, still, num_frames = plan
            yield collate(rows, scenes, still, num_frames, tokenizer.pad_token_id)


def _plan(tokenizer: Any, mix: Mix, seed: int, pool: int) -> list[Any]:
    """The batches of one pool, before rendering, in a shuffled order."""
    rng = np.random.default_rng([seed, pool])
    first = pool * POOL * mix.batch
    plans = []
    for still, part in ((True, range(STILL_BATCHES)), (False, range(STILL_BATCHES, POOL))):
        seeds = [first + slot * mix.batch + i for slot in part for i in range(mix.batch)]
        scenes = [sample_still(s) if still else sample_scene(s) for s in seeds]
        talks = [(scene, dialogue(scene, still)) for scene in scenes]
        talks.sort(key=lambda talk: sum(len(turn.answer) + len(turn.question) for turn in talk[1]))
        for at in range(0, len(talks), mix.batch):
            chosen = talks[at : at + mix.batch]
            frames = int(rng.choice(mix.frames, p=mix.share))
            rows = [encode(tokenizer, turns, still, frames) for _, turns in chosen]
            plans.append((rows, [scene for scene, _ in chosen], still, frames))
    return [plans[int(i)] for i in rng.permutation(len(plans))]


def check_fast_path(processor: Any) -> None:
    """Raises AssertionError unless this file's tensors equal the processor's, for one video and one picture."""
    for still in (False, True):
        scene = sample_still(3) if still else sample_scene(3)
        turns = dialogue(scene, still)[:1]
        content = [{"type": "image" if still else "video"}, {"type": "text", "text": turns[0].question}]
        talk = [{"role": "user", "content": content}, {"role": "assistant", "content": turns[0].answer}]
        text = processor.apply_chat_template(talk)
        frames = render(scene, 1 if still else 8, SIDE)
        media = {"images": [frames[0]]} if still else {"videos": [frames], "do_sample_frames": False}
        truth = processor(text=text, return_tensors="pt", **media)
        row = encode(processor.tokenizer, turns, still, 8)
        ours = collate([row], [scene], still, 8, processor.tokenizer.pad_token_id)
        assert torch.equal(truth["input_ids"], ours["input_ids"]), "token ids differ from the processor's"
        name = "pixel_values" if still else "pixel_values_videos"
        torch.testing.assert_close(truth[name], ours[name], rtol=0, atol=1e-5)

"""Training batches: scenes, dialogues about them, and the tensors that the processor would have
made of them.

The processor is the truth of how a sample becomes tensors; this file is its fast path, and
:func:`check_fast_path` compares the two before any training starts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from draftlens.world import render, render_still
from draftlens.world.samples import KINDS, Sample, draw
from recipes.pair.models import FRAME_TOKENS, PATCHES, SIDE
from recipes.pair.tokenizer import IMAGE, VIDEO, chat

MEAN = (0.48145466, 0.4578275, 0.40821073)  # CLIP's, which the OneVision processors normalise by
STD = (0.26862954, 0.26130258, 0.27577711)
IMAGE_TOKENS = (
    PATCHES + PATCHES + SIDE // 8
)  # the whole picture, its one tile, and a newline for each row of patches
PAIRED_TOKENS = PATCHES + 1  # one of several pictures is shown whole only, with one newline
IGNORED = -100
POOL = 16  # batches that are drawn together, so that samples of like length can share a batch

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Mix:
    """What a phase is shown: ``share[i]`` of the clip batches have ``frames[i]`` frames; ``batch``
    samples each.

    Scenes are those of the seeds from ``first`` on. A batch of more than ``tokens`` visual tokens
    is cut to fewer samples. ``others`` of POOL batches are pictures, pairs of pictures and talk
    without a picture, in this order.
    """

    frames: tuple[int, ...]
    share: tuple[float, ...]
    batch: int = 32
    tokens: int = 1 << 20
    others: tuple[int, int, int] = (2, 1, 1)
    first: int = 0


def encode(tokenizer: Any, sample: Sample, num_frames: int) -> tuple[list[int], list[int]]:
    """Token ids and labels (IGNORED outside the answers) of a dialogue about what the sample
    shows."""
    width = {
        "clip": num_frames * FRAME_TOKENS + 1,
        "picture": IMAGE_TOKENS,
        "pair": PAIRED_TOKENS,
        "talk": 0,
    }
    media = {"clip": (VIDEO,), "picture": (IMAGE,), "pair": (IMAGE, IMAGE), "talk": ()}[sample.kind]
    holders = {tokenizer.convert_tokens_to_ids(holder) for holder in (IMAGE, VIDEO)}
    ids: list[int] = []
    labels: list[int] = []
    for text, answer in chat(media, list(sample.turns)):
        for token in tokenizer(text).input_ids:
            piece = [token] * (width[sample.kind] if token in holders else 1)
            ids += piece
            labels += piece if answer else [IGNORED] * len(piece)
    return ids, labels


def pixels(frames: NDArray[np.uint8]) -> torch.Tensor:
    """Frames ``[..., S, S, 3]`` uint8 to normalised ``[..., 3, S, S]`` float32."""
    x = torch.from_numpy(frames).movedim(-1, -3).float() / 255
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))
    return (x - mean) / std


def collate(tokenizer: Any, samples: list[Sample], num_frames: int) -> Batch:
    """One batch of samples of one kind, padded on the right: under a causal mask no real token sees
    the padding."""
    rows = [encode(tokenizer, sample, num_frames) for sample in samples]
    longest = max(len(ids) for ids, _ in rows)
    pad = tokenizer.pad_token_id
    batch: Batch = {
        "input_ids": torch.tensor([ids + [pad] * (longest - len(ids)) for ids, _ in rows]),
        "labels": torch.tensor(
            [labels + [IGNORED] * (longest - len(labels)) for _, labels in rows]
        ),
    }
    return {**batch, **_shown(samples, num_frames)}


def _shown(samples: list[Sample], num_frames: int) -> Batch:
    """The visual part of a batch of samples of one kind."""
    kind = samples[0].kind
    scenes = [scene for sample in samples for scene in sample.scenes]
    if kind == "talk":
        return {}
    if kind == "clip":
        return {
            "pixel_values_videos": pixels(
                np.stack([render(scene, num_frames, SIDE) for scene in scenes])
            )
        }
    values = pixels(np.stack([render_still(scene, SIDE) for scene in scenes]))[:, None]
    count = len(samples[0].scenes)
    return {
        # A single picture comes twice: whole, and as its only tile, which is the same.
        "pixel_values": values.expand(-1, 2, -1, -1, -1) if count == 1 else values,
        "image_sizes": torch.full((len(scenes), 2), SIDE),
        "batch_num_images": torch.full((len(samples),), count),
    }


def batches(tokenizer: Any, mix: Mix, seed: int, start: int) -> Iterator[Batch]:
    """Endless batches, the same for the same seed; ``start`` skips that many (to resume)."""
    for samples, frames in plans(mix, seed, start):
        yield collate(tokenizer, samples, frames)


def plans(mix: Mix, seed: int, start: int) -> Iterator[tuple[list[Sample], int]]:
    """What goes into each batch: samples of one kind, and how many frames clips have."""
    for pool in range(start // POOL, 2**31):
        skip = start % POOL if pool == start // POOL else 0
        yield from _plan(mix, seed, pool)[skip:]


def _plan(mix: Mix, seed: int, pool: int) -> list[tuple[list[Sample], int]]:
    """The batches of one pool, before rendering, in a shuffled order."""
    rng = np.random.default_rng([seed, pool])
    counts = dict(zip(KINDS, (POOL - sum(mix.others), *mix.others), strict=True))
    at = mix.first + pool * POOL * mix.batch
    plans = []
    for kind, count in counts.items():
        samples = [draw(kind, at + i) for i in range(count * mix.batch)]
        at += len(samples)
        samples.sort(
            key=lambda sample: sum(
                len(turn.marked_answer) + len(turn.question) for turn in sample.turns
            )
        )
        for start in range(0, len(samples), mix.batch):
            frames = int(rng.choice(mix.frames, p=mix.share))
            rows = (
                mix.batch
                if kind != "clip"
                else max(1, min(mix.batch, mix.tokens // (frames * FRAME_TOKENS)))
            )
            chosen = samples[start : start + mix.batch]
            picks = sorted(int(i) for i in rng.permutation(len(chosen))[:rows])
            plans.append(([chosen[i] for i in picks], frames))
    return [plans[int(i)] for i in rng.permutation(len(plans))]


def check_fast_path(processor: Any) -> None:
    """Raises AssertionError unless this file's tensors equal the processor's, for every kind of
    sample."""
    for kind in KINDS:
        sample = draw(kind, 3)
        ours = collate(processor.tokenizer, [sample], 8)
        truth = _processed(processor, sample, 8)
        assert torch.equal(truth["input_ids"], ours["input_ids"]), (
            f"{kind}: token ids differ from the processor's"
        )
        for name in truth.keys() - {"input_ids", "attention_mask"}:
            torch.testing.assert_close(
                torch.as_tensor(truth[name]), ours[name], rtol=0, atol=1e-5, check_dtype=False
            )


def _processed(processor: Any, sample: Sample, num_frames: int) -> Any:
    """The whole dialogue as the processor encodes it."""
    shown = [{"type": "video" if sample.kind == "clip" else "image"}] * len(sample.scenes)
    talk: list[Any] = []
    for i, turn in enumerate(sample.turns):
        question = [*(shown if i == 0 else []), {"type": "text", "text": turn.question}]
        talk += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": turn.answer},
        ]
    media: dict[str, Any] = {}
    if sample.kind == "clip":
        media = {"videos": [render(sample.scenes[0], num_frames, SIDE)], "do_sample_frames": False}
    elif sample.scenes:
        media = {"images": [[render_still(scene, SIDE) for scene in sample.scenes]]}
    return processor(text=processor.apply_chat_template(talk), return_tensors="pt", **media)

"""Batches of dialogues about scenes, with tensors equal to the processor's.

The processor defines the tensors of a sample. This module computes the same tensors faster, and
`check_fast_path` compares the two before training starts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from draftlens_lab.world import render, render_still
from draftlens_lab.world.samples import FIRST_KINDS, KINDS, REEL_KINDS, Sample, draw
from draftlens_lab.world.scene import COLOURS
from numpy.typing import NDArray

from recipes.pair.drill import draw_drill, draw_quiz
from recipes.pair.models import FRAME_TOKENS, PATCHES, SIDE
from recipes.pair.tokenizer import IMAGE, VIDEO, chat

MEAN = (0.48145466, 0.4578275, 0.40821073)  # CLIP's, which OneVision's processors normalise by
STD = (0.26862954, 0.26130258, 0.27577711)
# The whole picture, its only tile, and a newline for each row of patches.
IMAGE_TOKENS = PATCHES + PATCHES + SIDE // 8
PAIRED_TOKENS = PATCHES + 1  # one of several pictures: the whole picture and one newline
IGNORED = -100
STILL_SHARE = 0.3  # of the batches of quizzes
REACHING = 0.3  # of the batches of reels, in a mix that reaches further than their tokens
POOL = 16  # batches that are drawn together, so that samples of similar length share a batch
PLACEHOLDERS = {"video": (VIDEO,), "image": (IMAGE,), "images": (IMAGE, IMAGE), "none": ()}
SECOND_KINDS = (*REEL_KINDS, "spot", "drill", "quiz")

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Mix:
    """The data of a phase.

    Args:
        frames: possible numbers of frames of the clips in a batch.
        share: probability of each of these numbers.
        batch: samples per batch.
        tokens: maximum number of visual tokens in a batch of clips; larger batches are cut to fewer
            samples.
        others: out of `POOL` batches, the number of batches of pictures, of pairs of pictures and
            of talk without a picture.
        first: seed of the first scene.
        seconds: out of `POOL` batches, the number of each of `SECOND_KINDS`.
        reel_frames: possible numbers of frames of reels.
        reel_share: probability of each of these numbers.
        rows: samples per batch of `SECOND_KINDS`, whose answers are longer.
        reach: number of positions to which the frames of some reels are spread, as if many frames
            between them had been left out; 0 for none.
        colour_noise: see `with_colour_noise`.
    """

    frames: tuple[int, ...]
    share: tuple[float, ...]
    batch: int = 32
    tokens: int = 1 << 20
    others: tuple[int, int, int] = (2, 1, 1)
    first: int = 0
    seconds: tuple[int, int, int, int, int, int] = (0, 0, 0, 0, 0, 0)
    reel_frames: tuple[int, ...] = (16,)
    reel_share: tuple[float, ...] = (1.0,)
    rows: int = 8
    reach: int = 0
    colour_noise: float = 0.0


@dataclass(frozen=True)
class BatchPlan:
    """A batch before rendering.

    Args:
        samples: samples of one kind.
        num_frames: frames of each clip.
        gaps: positions that are left out before each frame, none if empty.
    """

    samples: list[Sample]
    num_frames: int
    gaps: tuple[int, ...] = ()


@dataclass(frozen=True)
class Encoded:
    """The tokens of a dialogue.

    Args:
        ids: token ids.
        labels: the ids at answers, `IGNORED` elsewhere.
        turns: the index of the turn at answers, `IGNORED` elsewhere.
    """

    ids: list[int]
    labels: list[int]
    turns: list[int]


def encode(tokenizer: Any, sample: Sample, num_frames: int) -> Encoded:
    """Tokenize a dialogue; each placeholder becomes the number of visual tokens of its media."""
    num_visual_tokens = {
        "video": num_frames * FRAME_TOKENS + 1,
        "image": IMAGE_TOKENS,
        "images": PAIRED_TOKENS,
        "none": 0,
    }[sample.media]
    placeholder_ids = {tokenizer.convert_tokens_to_ids(text) for text in (IMAGE, VIDEO)}
    ids: list[int] = []
    labels: list[int] = []
    turns: list[int] = []
    turn = 0
    for piece in chat(PLACEHOLDERS[sample.media], list(sample.turns)):
        for token in tokenizer(piece.text).input_ids:
            repeats = num_visual_tokens if token in placeholder_ids else 1
            ids += [token] * repeats
            labels += [token if piece.is_answer else IGNORED] * repeats
            turns += [turn if piece.is_answer else IGNORED] * repeats
        turn += piece.is_answer
    return Encoded(ids, labels, turns)


def pixels(frames: NDArray[np.uint8]) -> torch.Tensor:
    """Normalise frames uint8 ``[..., S, S, 3]`` to float32 ``[..., 3, S, S]``."""
    x = torch.from_numpy(frames).movedim(-1, -3).float() / 255
    mean = torch.tensor(MEAN).view(3, 1, 1)
    std = torch.tensor(STD).view(3, 1, 1)
    return (x - mean) / std


def collate(
    tokenizer: Any, samples: list[Sample], num_frames: int, gaps: tuple[int, ...] = ()
) -> Batch:
    """One batch of samples of one kind, padded on the right.

    No attention mask is needed: with causal attention no token attends to the padding after it.

    Args:
        tokenizer: the pair's tokenizer.
        samples: the samples.
        num_frames: frames of each clip.
        gaps: see `BatchPlan`.
    """
    rows = [encode(tokenizer, sample, num_frames) for sample in samples]
    longest = max(len(row.ids) for row in rows)
    ids = [_padded(row.ids, longest, tokenizer.pad_token_id) for row in rows]
    labels = [_padded(row.labels, longest, IGNORED) for row in rows]
    text = {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}
    if gaps:
        video_id = tokenizer.convert_tokens_to_ids(VIDEO)
        text |= _spread_positions(text["input_ids"], video_id, gaps)
    return {**text, **_visual_inputs(samples, num_frames)}


def with_colour_noise(
    tokenizer: Any, batch: Batch, share: float, rng: np.random.Generator
) -> Batch:
    """The batch with other colours in its answers, as the model reads them; what it has to predict
    stays as it is.

    Training scenes show no blue cross, so a model learns that what follows "blue" is no cross, and
    says so of a blue cross. If the colour that it reads tells nothing of the shape, it has to look.

    Args:
        tokenizer: the pair's tokenizer.
        batch: the batch.
        share: share of the colours of answers that are replaced by any of `COLOURS`.
        rng: chooses which ones, and by what.
    """
    # With a space before them, which all colours in sentences have, each is one token.
    colours = torch.tensor([tokenizer(f" {name}").input_ids[0] for name in COLOURS])
    ids, labels = batch["input_ids"], batch["labels"]
    is_colour = torch.isin(ids, colours) & (labels != IGNORED)
    is_replaced = is_colour & torch.from_numpy(rng.random(ids.shape) < share)
    others = colours[torch.from_numpy(rng.integers(len(colours), size=ids.shape))]
    return {**batch, "input_ids": torch.where(is_replaced, others, ids)}


def batches(tokenizer: Any, mix: Mix, seed: int, start: int) -> Iterator[Batch]:
    """Endless batches that depend on the seed only, beginning with number ``start``."""
    for plan in plans(mix, seed, start):
        yield collate(tokenizer, plan.samples, plan.num_frames, plan.gaps)


def plans(mix: Mix, seed: int, start: int) -> Iterator[BatchPlan]:
    """The plans of `batches`."""
    first_pool, skip = divmod(start, POOL)
    yield from _pool(mix, seed, first_pool)[skip:]
    for pool in range(first_pool + 1, 2**31):
        yield from _pool(mix, seed, pool)


def check_fast_path(processor: Any) -> None:
    """Compare this module's tensors with the processor's, for every kind of sample.

    Raises:
        AssertionError: they differ.
    """
    frames = 16
    for kind in KINDS:
        sample = draw(kind, 3, frames)
        ours = collate(processor.tokenizer, [sample], frames)
        expected = _processed(processor, sample, frames)
        assert torch.equal(expected["input_ids"], ours["input_ids"]), (
            f"{kind}: token ids differ from the processor's"
        )
        for name in expected.keys() - {"input_ids", "attention_mask"}:
            torch.testing.assert_close(
                torch.as_tensor(expected[name]), ours[name], rtol=0, atol=1e-5, check_dtype=False
            )


def _padded(row: list[int], length: int, value: int) -> list[int]:
    return row + [value] * (length - len(row))


def _spread_positions(input_ids: torch.Tensor, video_id: int, gaps: tuple[int, ...]) -> Batch:
    """The positions of a batch of videos with gaps before their frames.

    The mask of ones says that a row is one sequence: without a mask, transformers takes positions
    with gaps for those of several sequences, packed into a row.
    """
    first = int((input_ids[0] == video_id).to(torch.uint8).argmax())  # the same in every row
    added = torch.zeros(input_ids.shape[1], dtype=torch.int64)
    added[first : first + len(gaps) * FRAME_TOKENS : FRAME_TOKENS] = torch.tensor(gaps)
    positions = torch.arange(input_ids.shape[1]) + added.cumsum(0)
    return {
        "position_ids": positions.expand_as(input_ids),
        "attention_mask": torch.ones_like(input_ids),
    }


def _visual_inputs(samples: list[Sample], num_frames: int) -> Batch:
    """The visual tensors of a batch of samples of one kind."""
    media = samples[0].media
    if media == "none":
        return {}
    scenes = [scene for sample in samples for scene in sample.scenes]
    if media == "video":
        clips = np.stack([render(scene, num_frames, SIDE) for scene in scenes])
        return {"pixel_values_videos": pixels(clips)}
    pictures = pixels(np.stack([render_still(scene, SIDE) for scene in scenes]))[:, None]
    count = len(samples[0].scenes)
    if count == 1:
        # A single picture appears twice: whole, and as its only tile, which is the same.
        pictures = pictures.expand(-1, 2, -1, -1, -1)
    return {
        "pixel_values": pictures,
        "image_sizes": torch.full((len(scenes), 2), SIDE),
        "batch_num_images": torch.full((len(samples),), count),
    }


def _pool(mix: Mix, seed: int, pool: int) -> list[BatchPlan]:
    """The plans of one pool of batches, in a random order."""
    rng = np.random.default_rng([seed, pool])
    num_clips = POOL - sum(mix.others) - sum(mix.seconds)
    counts = dict(zip(FIRST_KINDS, (num_clips, *mix.others), strict=True))
    scene_seed = mix.first + pool * POOL * mix.batch
    plans = []
    for kind, count in counts.items():
        num_samples = count * mix.batch
        samples = [draw(kind, scene_seed + index) for index in range(num_samples)]
        scene_seed += num_samples
        samples.sort(key=_text_length)
        for start in range(0, num_samples, mix.batch):
            plans.append(_plan(mix, samples[start : start + mix.batch], rng))
    for kind, count in zip(SECOND_KINDS, mix.seconds, strict=True):
        for _ in range(count):
            plans.append(_second_plan(mix, kind, scene_seed, rng))
            scene_seed += mix.rows
    return [plans[int(index)] for index in rng.permutation(len(plans))]


def _plan(mix: Mix, samples: list[Sample], rng: np.random.Generator) -> BatchPlan:
    """A batch of some of the samples, as many as the limit of visual tokens allows."""
    num_frames = int(rng.choice(mix.frames, p=mix.share))
    num_rows = mix.batch
    if samples[0].kind == "clip":
        num_rows = max(1, min(mix.batch, mix.tokens // (num_frames * FRAME_TOKENS)))
    indices = sorted(int(index) for index in rng.permutation(len(samples))[:num_rows])
    return BatchPlan([samples[index] for index in indices], num_frames)


def _second_plan(mix: Mix, kind: str, seed: int, rng: np.random.Generator) -> BatchPlan:
    """A batch of one of `SECOND_KINDS`."""
    if kind == "quiz":
        return _quiz_plan(mix, seed, rng)
    num_frames = int(rng.choice(mix.reel_frames, p=mix.reel_share))
    num_rows = mix.rows
    if kind != "spot":
        num_rows = max(1, min(mix.rows, mix.tokens // (num_frames * FRAME_TOKENS)))
    seeds = range(seed, seed + num_rows)
    if kind == "drill":
        samples = [draw_drill(seed, num_frames) for seed in seeds]
    else:
        samples = [draw(kind, seed, num_frames) for seed in seeds]
    gaps: tuple[int, ...] = ()
    if mix.reach and kind != "spot" and rng.random() < REACHING:
        gaps = _gaps(num_frames, mix.reach, rng)
    return BatchPlan(samples, num_frames, gaps)


def _quiz_plan(mix: Mix, seed: int, rng: np.random.Generator) -> BatchPlan:
    """A batch of quizzes about pictures, or about clips of the mix's lengths."""
    if rng.random() < STILL_SHARE:
        return BatchPlan([draw_quiz(seed + row, still=True) for row in range(mix.rows)], 0)
    num_frames = int(rng.choice(mix.frames, p=mix.share))
    num_rows = max(1, min(mix.rows, mix.tokens // (num_frames * FRAME_TOKENS)))
    samples = [draw_quiz(seed + row, still=False) for row in range(num_rows)]
    return BatchPlan(samples, num_frames)


def _gaps(num_frames: int, reach: int, rng: np.random.Generator) -> tuple[int, ...]:
    """Random gaps before the frames of a video, which then takes up to ``reach`` positions."""
    taken = num_frames * FRAME_TOKENS
    end = int(np.exp(rng.uniform(np.log(taken), np.log(max(taken, reach)))))
    shares = rng.dirichlet(np.ones(num_frames))
    return tuple(int(share * (end - taken)) for share in shares)


def _text_length(sample: Sample) -> int:
    return sum(len(turn.marked_answer) + len(turn.question) for turn in sample.turns)


def _processed(processor: Any, sample: Sample, num_frames: int) -> Any:
    """The processor's tensors of a whole dialogue."""
    media: dict[str, Any] = {}
    media_type = "image"
    if sample.media == "video":
        media_type = "video"
        media = {"videos": [render(sample.scenes[0], num_frames, SIDE)], "do_sample_frames": False}
    elif sample.scenes:
        media = {"images": [[render_still(scene, SIDE) for scene in sample.scenes]]}
    messages: list[Any] = []
    content: list[Any] = [{"type": media_type}] * len(sample.scenes)
    for turn in sample.turns:
        content = [*content, {"type": "text", "text": turn.question}]
        messages.append({"role": "user", "content": content})
        messages.append({"role": "assistant", "content": turn.answer})
        content = []  # only the first question shows media
    return processor(text=processor.apply_chat_template(messages), return_tensors="pt", **media)

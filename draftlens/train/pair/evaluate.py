"""What the pair can do, measured on held-out scenes through the real processor and stock ``generate``."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from draftlens.train.pair.answers import answer, inputs_for
from draftlens.train.pair.models import SIDE
from draftlens.train.world import (
    HELD_OUT,
    Facts,
    Scene,
    caption,
    facts,
    questions,
    render,
    render_still,
    right_facts,
    sample_scene,
    sample_still,
    still_caption,
    still_facts,
)

GAMMA = 5
ROWS = 20  # scenes a batch


def captions_right(model: Any, processor: Any, count: int, frames: int = 8, still: bool = False) -> tuple[float, float]:
    """Shares of captions that are right word for word and of facts that are right, over ``count`` held-out scenes."""
    exact = right = total = 0
    for start in range(0, count, ROWS):
        seeds = range(HELD_OUT + start, HELD_OUT + min(start + ROWS, count))
        scenes = [sample_still(s) if still else sample_scene(s) for s in seeds]
        media = [render_still(s, SIDE) if still else render(s, frames, SIDE) for s in scenes]
        prompts = ["Describe the image." if still else "Describe the video."] * len(scenes)
        tell: Callable[[Scene], str] = still_caption if still else caption
        know: Callable[[Scene], Facts] = still_facts if still else facts
        for scene, text in zip(scenes, answer(model, processor, media, prompts, still), strict=True):
            exact += text == tell(scene)
            good, all_ = right_facts(text, know(scene))
            right, total = right + good, total + all_
    return exact / count, right / total


def questions_right(model: Any, processor: Any, count: int, still: bool) -> float:
    """Share of short questions answered right word for word, one question for each of ``count`` held-out scenes."""
    right = 0
    for start in range(0, count, ROWS):
        scenes, asked = [], []
        for seed in range(HELD_OUT + start, HELD_OUT + min(start + ROWS, count)):
            scene = sample_still(seed) if still else sample_scene(seed)
            turns = questions(scene, still)
            scenes.append(scene)
            asked.append(turns[int(np.random.default_rng([seed, 3]).integers(len(turns)))])
        media = [render_still(s, SIDE) if still else render(s, 8, SIDE) for s in scenes]
        texts = answer(model, processor, media, [turn.question for turn in asked], still)
        right += sum(text == turn.answer for text, turn in zip(texts, asked, strict=True))
    return right / count


def rounds(agrees: list[bool], gamma: int) -> int:
    """Verification passes for an answer of which the draft, on the target's own prefix, ranks ``agrees[i]`` first."""
    at = passes = 0
    while at < len(agrees):
        run = next((i for i, same in enumerate(agrees[at : at + gamma]) if not same), gamma)
        at += run + 1
        passes += 1
    return passes


@torch.inference_mode()
def agreement(target: Any, draft: Any, processor: Any, count: int, blind: bool = False) -> tuple[float, float]:
    """Share of the target's greedy tokens that the draft ranks first, and mean acceptance length at GAMMA.

    ``blind`` shows the draft black frames: what it would reach without looking.
    """
    same = tokens = passes = 0
    for seed in range(HELD_OUT, HELD_OUT + count):
        frames = render(sample_scene(seed), 8, SIDE)
        inputs = inputs_for(processor, [frames], ["Describe the video."], still=False)
        ids = target.generate(**inputs, max_new_tokens=160, do_sample=False)
        prompt = inputs["input_ids"].shape[1]
        if blind:
            inputs = inputs_for(processor, [frames * 0], ["Describe the video."], still=False)
        logits = draft(input_ids=ids, pixel_values_videos=inputs["pixel_values_videos"]).logits
        agrees = (logits[0, prompt - 1 : -1].argmax(-1) == ids[0, prompt:]).tolist()
        same, tokens, passes = same + sum(agrees), tokens + len(agrees), passes + rounds(agrees, GAMMA)
    return same / tokens, tokens / passes


@torch.inference_mode()
def decode_ms(model: Any, processor: Any, steps: int = 60) -> float:
    """Median milliseconds of decoding one token with a KV cache at batch 1, after a video prompt."""
    inputs = inputs_for(processor, [render(sample_scene(HELD_OUT), 8, SIDE)], ["Describe the video."], still=False)
    cache = model(**inputs, use_cache=True).past_key_values
    token = inputs["input_ids"][:, -1:]
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        model(input_ids=token, past_key_values=cache, use_cache=True)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def report(target: Any, draft: Any, processor: Any, count: int) -> list[str]:
    """The figures of the model card, one line each."""
    lines = []
    for name, model in (("target", target), ("draft", draft)):
        for frames in (8,) if model is draft else (4, 8, 16):
            exact, right = captions_right(model, processor, count, frames)
            lines.append(f"{name}: video captions, {frames} frames: exact {exact:.3f}, facts right {right:.4f}")
        exact, right = captions_right(model, processor, count, still=True)
        lines.append(f"{name}: image captions: exact {exact:.3f}, facts right {right:.4f}")
        asked = [questions_right(model, processor, count, still) for still in (False, True)]
        lines.append(f"{name}: questions right: video {asked[0]:.3f}, image {asked[1]:.3f}")
    for blind in (False, True):
        share, length = agreement(target, draft, processor, count, blind)
        who = "draft shown black frames" if blind else "draft"
        lines.append(f"{who}: greedy agreement {share:.3f}, mean acceptance length at gamma {GAMMA}: {length:.2f}")
    slow, fast = decode_ms(target, processor), decode_ms(draft, processor)
    lines.append(f"decode ms a token, 1 thread, batch 1: target {slow:.2f}, draft {fast:.2f}, ratio {slow / fast:.1f}")
    return lines

"""``python -m recipes.pair.views FOLDER``: what the views of a draft are worth by kind of prompt.

A draft reads a prompt whole (M) or with a line break in place of each picture and clip (T), as in
TABED. The target's greedy answers are given to both, so one forward pass measures an answer.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from draftlens_lab.bench.options import BenchOptions
from draftlens_lab.bench.workloads import clips_of
from draftlens_lab.measure.rounds import GAMMA, acceptance_length

from draftlens.media.conversation import Conversation, process
from recipes.pair.export import load
from recipes.pair.recipe import EMBEDDED

KINDS = (
    "picture",
    "world:8",
    "world:16",
    "world:64",
    "pairs",
    "story",
    "second",
    "recall",
    "aside",
    "talk",
)
"""Workloads of `draftlens bench`."""

VIEWS = ("M", "T")
MAX_NEW_TOKENS = 128  # as in the paper

Hits = list[bool]


@dataclass(frozen=True)
class Figures:
    """The block efficiency of each view over the answers of one kind.

    Args:
        kind: one of `KINDS`.
        lengths: for each of `VIEWS` the tokens a verification pass yields, bonus token included.
        prompt: mean number of positions of the whole prompt.
        answer: mean number of tokens of an answer.
    """

    kind: str
    lengths: tuple[float | None, ...]
    prompt: float
    answer: float


def measure(target: Any, draft: Any, processor: Any, kind: str, number: int) -> Figures:
    """The figures of one kind.

    Args:
        target: the model whose greedy answers are guessed.
        draft: the model that guesses.
        processor: of both.
        kind: one of `KINDS`.
        number: number of held-out prompts.
    """
    hits: dict[str, list[Hits]] = {view: [] for view in VIEWS}
    prompt_lengths = []
    answer_lengths = []
    for clip in clips_of(BenchOptions(kind, clips=number), processor):
        chat = clip.prepare()()
        answer, prompt_length = greedy_answer(target, processor, chat)
        hits["M"].append(guessed(draft, processor, chat, answer))
        hits["T"].append(guessed(draft, processor, without_media(chat), answer))
        prompt_lengths.append(prompt_length)
        answer_lengths.append(len(answer))
    lengths = tuple(acceptance_length(hits[view], GAMMA) for view in VIEWS)
    return Figures(kind, lengths, _mean(prompt_lengths), _mean(answer_lengths))


@torch.inference_mode()
def greedy_answer(target: Any, processor: Any, chat: Conversation) -> tuple[list[int], int]:
    """The target's answer and the number of positions of its prompt."""
    inputs = process(processor, [chat])
    ids = target.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
    start = inputs["input_ids"].shape[1]
    return ids[0, start:].tolist(), start


@torch.inference_mode()
def guessed(draft: Any, processor: Any, chat: Conversation, answer: Sequence[int]) -> Hits:
    """For each token of an answer after the first, whether the draft ranks it first, given those
    before it."""
    inputs = process(processor, [chat])
    tokens = torch.tensor([list(answer)])
    ids = torch.cat([inputs.pop("input_ids"), tokens], dim=1)
    inputs.pop("attention_mask")
    logits = draft(input_ids=ids, logits_to_keep=len(answer), **inputs).logits[0, :-1]
    hits: Hits = (logits.argmax(-1) == tokens[0, 1:]).tolist()
    return hits


def without_media(chat: Conversation) -> Conversation:
    """The conversation with a line break in place of each picture and clip."""
    messages = []
    for message in chat.messages:
        content = [_as_text(item) for item in message["content"]]
        messages.append({**message, "content": content})
    return replace(chat, messages=messages, images=[], videos=[])


def _as_text(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] == "text":
        return item
    return {"type": "text", "text": "\n"}


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)


def _line(figures: Figures) -> str:
    lengths = " ".join(
        f"{view} {0.0 if length is None else length:.2f}"
        for view, length in zip(VIEWS, figures.lengths, strict=True)
    )
    return (
        f"{figures.kind:9} {lengths}, {figures.prompt:.0f} positions, {figures.answer:.0f} tokens"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.pair.views")
    parser.add_argument("draft", type=Path, help="folder of the draft")
    parser.add_argument("kinds", nargs="*", help=f"workloads (default: {' '.join(KINDS)})")
    parser.add_argument("--target", type=Path, default=EMBEDDED / "target", help="folder")
    parser.add_argument("--number", type=int, default=20, help="prompts of each kind")
    parser.add_argument("--threads", type=int, default=1, help="number of PyTorch threads")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    target, processor = load(options.target)
    draft, _ = load(options.draft)
    for kind in options.kinds or KINDS:
        print(_line(measure(target, draft, processor, kind, options.number)), flush=True)


if __name__ == "__main__":
    main()

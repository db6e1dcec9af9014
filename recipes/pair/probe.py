"""Held-out losses of a model by family, and what each of its layers adds.

A probe is cheap: the right answers are given, so one forward pass measures a whole dialogue. It
measures only the tokens that state something visible: the words of an answer that are in brackets.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from draftlens_lab.world import HELD_OUT, seen_spans
from draftlens_lab.world.dialogue import Turn
from draftlens_lab.world.sample import HELD_OUT_LOOKS
from draftlens_lab.world.samples import MEDIA, Sample, draw
from draftlens_lab.world.scene import COLOURS, SHAPES

from recipes.pair.data import IGNORED, collate, encode
from recipes.pair.export import load
from recipes.pair.models import slow_down
from recipes.pair.recipe import EMBEDDED

SEED = HELD_OUT + 900_000
PLAN = (
    ("clip", 8, 24),
    ("clip", 64, 4),
    ("picture", 8, 12),
    ("focus", 16, 24),
    ("focus", 64, 4),
    ("needle", 32, 6),
    ("chat", 16, 12),
    ("spot", 2, 24),
)
"""Kind, number of frames and number of samples of each part of a probe."""

LONG_PLAN = (("clip", 256, 4), ("focus", 256, 8), ("needle", 256, 8))
"""The same for long clips, which take too long during training."""

SHAPES_PLAN = (("clip", 8, 48), ("picture", 8, 32), ("focus", 16, 24))
"""Those of `measure_shapes`."""

Plan = tuple[tuple[str, int, int], ...]
ROWS = 4  # samples in one pass
FEW_FRAMES = 64  # of more, one sample in one pass


@dataclass
class _Sum:
    """The sums over the tokens of a family."""

    loss: float = 0.0
    right: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Figure:
    """How well a model predicts the visible words of a family's answers.

    Args:
        loss: mean cross entropy in nats.
        right: share of the tokens that the model ranks first.
        tokens: number of tokens.
    """

    loss: float
    right: float
    tokens: int


class Probe:
    """Writes a line of figures each time that it is called with a step.

    Args:
        model: the model in training.
        tokenizer: the pair's tokenizer.
        file: to which lines are added.
        every: steps between lines.
    """

    def __init__(self, model: Any, tokenizer: Any, file: Path, every: int = 200) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.file = file
        self.every = every

    def __call__(self, step: int) -> None:
        if step % self.every:
            return
        figures = measure(self.model, self.tokenizer)
        row: dict[str, float] = {"step": step}
        for name, figure in figures.items():
            row[f"{name} loss"] = round(figure.loss, 4)
            row[f"{name} right"] = round(figure.right, 4)
        with self.file.open("a") as file:
            file.write(json.dumps(row) + "\n")


@torch.no_grad()
def measure(
    model: Any, tokenizer: Any, share: float = 1.0, plan: Plan | None = None
) -> dict[str, Figure]:
    """The figures of each family, on the same held-out samples every time.

    Args:
        model: the model; its mode is restored.
        tokenizer: the pair's tokenizer.
        share: share of the samples.
        plan: other parts than those of `PLAN`.
    """
    was_training = model.training
    model.eval()
    sums: dict[str, _Sum] = defaultdict(_Sum)
    for samples, frames in _drawn(plan or PLAN, share):
        _measure_batch(model, tokenizer, samples, frames, sums)
    model.train(was_training)
    return _figures(sums)


@torch.no_grad()
def measure_shapes(model: Any, tokenizer: Any, plan: Plan | None = None) -> dict[str, Figure]:
    """The figures of the words for shapes, with the right answer so far given: those behind a
    colour that the shape has in no training scene, and those behind any other.

    Args:
        model: the model, in evaluation mode.
        tokenizer: the pair's tokenizer.
        plan: other parts than those of `SHAPES_PLAN`.
    """
    colours, shapes = (
        [tokenizer(f" {name}").input_ids[0] for name in names] for names in (COLOURS, SHAPES)
    )
    new = {
        (colours[COLOURS.index(colour)], shapes[SHAPES.index(shape)])
        for colour, shape in HELD_OUT_LOOKS
    }
    sums: dict[str, _Sum] = defaultdict(_Sum)
    for samples, frames in _drawn(plan or SHAPES_PLAN, 1):
        batch = collate(tokenizer, samples, frames)
        ids, labels = batch["input_ids"][:, :-1], batch.pop("labels")[:, 1:]
        is_shape = torch.isin(labels, torch.tensor(shapes)) & torch.isin(ids, torch.tensor(colours))
        hidden = model.model(**batch, use_cache=False).last_hidden_state[:, :-1]
        logits = model.lm_head(hidden[is_shape]).float()
        losses = torch.nn.functional.cross_entropy(logits, labels[is_shape], reduction="none")
        right = logits.argmax(-1) == labels[is_shape]
        looks = zip(ids[is_shape].tolist(), labels[is_shape].tolist(), strict=True)
        for look, loss, is_right in zip(looks, losses.tolist(), right.tolist(), strict=True):
            total = sums["shapes in new colours" if look in new else "shapes in other colours"]
            total.loss += loss
            total.right += is_right
            total.tokens += 1
    return _figures(sums)


def _drawn(plan: Plan, share: float) -> Iterator[tuple[list[Sample], int]]:
    """The samples of each pass of a plan, and their number of frames."""
    for kind, frames, count in plan:
        num_samples = max(1, round(share * count))
        samples = [draw(kind, SEED + index, frames) for index in range(num_samples)]
        rows = ROWS if frames <= FEW_FRAMES else 1
        for start in range(0, num_samples, rows):
            yield samples[start : start + rows], frames


def _figures(sums: Mapping[str, _Sum]) -> dict[str, Figure]:
    return {
        name: Figure(total.loss / total.tokens, total.right / total.tokens, total.tokens)
        for name, total in sorted(sums.items())
    }


def layer_profile(model: Any, tokenizer: Any, share: float = 0.25) -> Iterator[float]:
    """The rise of the mean held-out loss without each layer of the language model.

    Yields:
        For each layer, the loss without it divided by the loss with all, minus 1.
    """
    full = _mean_loss(measure(model, tokenizer, share))
    for layer in model.model.language_model.layers:
        with _skipped(layer):
            without = _mean_loss(measure(model, tokenizer, share))
        yield without / full - 1


def _mean_loss(figures: dict[str, Figure]) -> float:
    tokens = sum(figure.tokens for figure in figures.values())
    return sum(figure.loss * figure.tokens for figure in figures.values()) / tokens


@contextmanager
def _skipped(layer: Any) -> Iterator[None]:
    """The layer adds nothing to its input."""

    def skip(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        states = args[0] if args else kwargs["hidden_states"]
        return (states, *output[1:]) if isinstance(output, tuple) else states

    handle = layer.register_forward_hook(skip, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _measure_batch(
    model: Any, tokenizer: Any, samples: list[Sample], frames: int, sums: dict[str, _Sum]
) -> None:
    batch = collate(tokenizer, samples, frames)
    labels = batch.pop("labels")[:, 1:]
    hidden = model.model(**batch, use_cache=False).last_hidden_state[:, :-1]
    for row, sample in enumerate(samples):
        encoded = encode(tokenizer, sample, frames)
        is_answer = labels[row] != IGNORED
        logits = model.lm_head(hidden[row][is_answer]).float()
        tokens = labels[row][is_answer]
        losses = torch.nn.functional.cross_entropy(logits, tokens, reduction="none")
        right = logits.argmax(-1) == tokens
        turns = torch.tensor([turn for turn in encoded.turns if turn != IGNORED])
        for index, turn in enumerate(sample.turns):
            seen = torch.tensor(_seen_tokens(tokenizer, turn))
            total = sums[_name(sample, turn, frames)]
            total.loss += float(losses[turns == index][seen].sum())
            total.right += int(right[turns == index][seen].sum())
            total.tokens += len(seen)


def _name(sample: Sample, turn: Turn, frames: int) -> str:
    """The name of a family in the figures, with the number of frames of a video."""
    name = turn.family
    form = getattr(turn, "form", "")
    if form and form != name:
        name = f"{name} {form}"
    return f"{name} {frames}" if MEDIA[sample.kind] == "video" else f"{sample.kind} {name}"


def _seen_tokens(tokenizer: Any, turn: Turn) -> list[int]:
    """The indices of the answer's tokens that state something visible."""
    spans = seen_spans(turn.marked_answer)
    offsets = tokenizer(turn.answer, return_offsets_mapping=True)["offset_mapping"]
    indices = []
    for index, (start, end) in enumerate(offsets):
        if any(start < stop and end > first for first, stop in spans):
            indices.append(index)
    return indices


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.pair.probe", description="Figures by family and the layer profile."
    )
    parser.add_argument("folder", type=Path, nargs="?", default=EMBEDDED / "target")
    parser.add_argument("--layers", action="store_true", help="measure without each layer")
    parser.add_argument("--share", type=float, default=0.25, help="share of the probe's samples")
    parser.add_argument("--long", action="store_true", help="clips of 256 frames only")
    parser.add_argument("--shapes", action="store_true", help="measure the words for shapes only")
    parser.add_argument(
        "--slow-turn",
        type=int,
        default=0,
        help="slow down the rotary pairs that need more positions for a turn",
    )
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, processor = load(options.folder)
    slow_down(model, options.slow_turn)
    if options.layers:
        for index, rise in enumerate(layer_profile(model, processor.tokenizer, options.share)):
            print(f"without layer {index + 1:2}: loss {100 * rise:+.2f}%", flush=True)
        return
    if options.shapes:
        figures = measure_shapes(model, processor.tokenizer)
    else:
        figures = measure(model, processor.tokenizer, plan=LONG_PLAN if options.long else PLAN)
    for name, figure in figures.items():
        print(f"{name:28} loss {figure.loss:.3f} right {figure.right:.3f} of {figure.tokens}")


if __name__ == "__main__":
    main()

"""Comparison of an accelerated answer with plain decoding of the same prompt, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from draftlens.cli.loading import read_files, read_media
from draftlens.cli.show import console, exactness, near_tie, print_json
from draftlens.core.errors import ConfigError
from draftlens.core.result import Result
from draftlens.engine import Engine
from draftlens.inputs import Inputs
from draftlens.media import Limits
from draftlens.media.conversation import Conversation
from draftlens.methods.base import PlainDecoding
from draftlens.models.adapter import Backbone
from draftlens.models.checks import LONG_PROMPT
from draftlens.prefill.base import Prefill
from draftlens.verify import Divergence, StockRun, first_divergence, run_stock


@dataclass(frozen=True)
class Moved:
    """How far an approximate prefill moves an answer from stock's.

    Args:
        first_divergence: the first difference; None if there is none.
    """

    tokens: int
    same: int
    first_divergence: Divergence | None


@dataclass(frozen=True)
class Verification:
    """The outcome of a comparison.

    Args:
        reference: what the answer is compared with: stock `generate` for greedy answers, and
            plain decoding with the same seed for sampled ones, because stock sampling draws from
            torch's generator. With an approximate prefill it is plain decoding on the same
            prefill: speculation must not add to what the prefill changes. With rounded weights it
            is stock `generate` of the rounded model, or plain decoding where activations are
            rounded, too.
        divergence: the first difference; None if there is none.
        moved: how far the answer is from stock's; None unless a greedy answer has an approximate
            prefill or a rounded model.
    """

    name: str
    reference: str
    tokens: int
    divergence: Divergence | None
    dtype: torch.dtype
    result: Result
    moved: Moved | None = None

    @property
    def failed(self) -> bool:
        """Whether the answers differ although the precision is at least float32.

        In a lower precision, rounding can decide near-ties differently, which is no error.
        """
        return self.divergence is not None and self.dtype in (torch.float32, torch.float64)

    def to_dict(self) -> dict[str, Any]:
        return {
            "input": self.name,
            "reference": self.reference,
            "tokens": self.tokens,
            "identical": self.divergence is None,
            "first_divergence": self.divergence and asdict(self.divergence),
            "lossless": self.result.lossless,
            "approximate": list(self.result.approximate),
            "notes": list(self.result.notes),
            "moved_from_stock": self.moved and asdict(self.moved),
        }


def read_prompts(
    media: Sequence[str],
    images: bool,
    prompt: str,
    frames: int,
    limits: Limits,
    quiet: bool,
) -> list[tuple[str, Conversation]]:
    """One prompt for each clip, or one for all images, or one without media, each with the names
    of its media."""
    if not media:
        return [("text only", read_media(quiet, limits, prompt))]
    groups = [list(media)] if images else [[clip] for clip in media]
    return [
        (", ".join(files), read_files(quiet, limits, prompt, frames, files, images))
        for files in groups
    ]


def verify_all(
    engine: Engine,
    prompts: Sequence[tuple[str, Conversation]],
    generation: dict[str, Any],
    as_json: bool,
) -> bool:
    """Compare and print the answers to prompts with the names of their media; whether none
    failed."""
    verifications = []
    for name, chat in prompts:
        verification = verify_engine(engine, engine.process([chat]), name, generation)
        verifications.append(verification)
        if not as_json:
            show_verification(verification)
    if as_json:
        reports = [verification.to_dict() for verification in verifications]
        print_json(reports[0] if len(reports) == 1 else reports)
    return not any(verification.failed for verification in verifications)


def verify_engine(
    engine: Engine, inputs: Inputs, name: str, options: dict[str, Any]
) -> Verification:
    """Answer a prompt by the engine's method and by plain decoding, and compare the tokens."""
    options = dict(options)
    if (form := options.pop("form", None)) is not None:
        from draftlens.core.forms import FormProcessor

        options["logits_processor"] = [FormProcessor(form, engine.target.processor.tokenizer)]
    do_sample = options.get("do_sample", False)
    stream = engine.answer(inputs, **options)
    if do_sample and stream.plan.acceptance.rule == "rejection":
        raise ConfigError(
            "rejection sampling draws other tokens by design; verify with the coupled rule"
        )
    result = stream.run()
    prefill = stream.plan.prefill
    target = engine.target.backbone
    rounding = ", ".join(target.passes.rounding)
    moved = None
    if not do_sample and (prefill.approximate or rounding):
        moved = _moved(_run_stock(target, inputs, options), result.tokens)
    if prefill.approximate:
        reference = f"plain decoding on the same prefill{' and seed' if do_sample else ''}"
        run = _run_plain(engine, inputs, options, prefill)
    elif do_sample:
        reference = "plain decoding with the same seed"
        run = _run_plain(engine, inputs, options, prefill)
    elif (model := target.passes.rounded_model(target.model)) is None:
        reference = f"plain decoding with {rounding}"
        run = _run_plain(engine, inputs, options, prefill)
    else:
        reference = f"stock generate with {rounding}" if rounding else "stock generate"
        run = _run_stock(Backbone.of(model), inputs, options)
    return Verification(
        name=name,
        reference=reference,
        tokens=sum(len(row) for row in run.tokens),
        divergence=first_divergence(run, result.tokens),
        dtype=engine.target.backbone.dtype,
        result=result,
        moved=moved,
    )


def _run_stock(target: Backbone, inputs: Inputs, options: dict[str, Any]) -> StockRun:
    ours = ("seed", LONG_PROMPT)
    greedy = {name: value for name, value in options.items() if name not in ours}
    return run_stock(target, inputs.target, keep_logits=True, **greedy)


def _run_plain(
    engine: Engine, inputs: Inputs, options: dict[str, Any], prefill: Prefill
) -> StockRun:
    method = PlainDecoding(prefill=prefill)
    plain = engine.answer(inputs, method=method, prefill=prefill, **options).run()
    return StockRun(plain.tokens, plain.stats.e2e, plain.stats.ttft)


def _moved(stock: StockRun, answer: list[list[int]]) -> Moved:
    same = 0
    for theirs, ours in zip(stock.tokens, answer, strict=True):
        same += sum(a == b for a, b in zip(theirs, ours, strict=False))
    tokens = sum(len(row) for row in stock.tokens)
    return Moved(tokens, same, first_divergence(stock, answer))


def show_verification(verification: Verification) -> None:
    divergence = verification.divergence
    dtype = str(verification.dtype).removeprefix("torch.")
    comparison = f"{verification.tokens} tokens against {verification.reference} in {dtype}"
    console.print(f"{verification.name}: {comparison}", markup=False)
    if verification.moved is not None:
        _show_moved(verification.moved)
    for note in verification.result.notes:
        console.print(note, markup=False)
    if divergence is None:
        console.print(f"identical: [bold green]yes[/] ({exactness(verification.result)})")
        return
    margin = near_tie(divergence.margin)
    console.print(
        f"identical: [bold red]no[/]; first difference at token {divergence.index} of row "
        f"{divergence.row}: {divergence.stock} in the reference, {divergence.ours} in the "
        f"accelerated answer{margin}"
    )


def _show_moved(moved: Moved) -> None:
    line = f"moved from stock generate: {moved.same} of {moved.tokens} tokens are the same"
    if moved.first_divergence is not None:
        line += f", up to token {moved.first_divergence.index} all"
    console.print(line, markup=False)

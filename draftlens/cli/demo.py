"""The demonstration: the same clip described by stock `generate` and by draftlens."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.text import Text

from draftlens.api import Engine, Inputs
from draftlens.cli.show import (
    DRAFT_STYLE,
    WordWriter,
    console,
    definitions,
    print_json,
    result_json,
    show_stream,
    table,
)
from draftlens.core.result import Result
from draftlens.measure.stock import StockRun, run_stock
from draftlens.world import Facts, right_facts


def run_demo(
    engine: Engine, inputs: Inputs, clip: Path, prompt: str, max_new_tokens: int, as_json: bool
) -> None:
    """Both answers, streamed, then the table; a clip of the world's comes with a record of what is
    right."""
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": False}
    truth = _truth(clip, prompt)
    _warm_up(engine, inputs)
    if as_json:
        stock = run_stock(engine.target.backbone, inputs.target, **options)
        result = engine.answer(inputs, **options).run()
        figures = {"clip": str(clip), **_figures(stock, result), **_checked(truth, result.text)}
        print_json({**figures, "result": result_json(result)})
        return
    name = (clip.name, "bold")
    console.print(Text.assemble(name, f", stock generate of {engine.target.name}:"))
    writer = WordWriter(console)
    stock = run_stock(
        engine.target.backbone, inputs.target, on_token=_printer(engine, writer), **options
    )
    writer.end()
    console.print()
    console.print(
        Text.assemble(name, ", draftlens (", ("green", DRAFT_STYLE), ": supplied by the draft):")
    )
    result = show_stream(engine.answer(inputs, **options), engine.pieces)
    console.print()
    said = engine.target.processor.tokenizer.decode(stock.tokens[0], skip_special_tokens=True)
    facts = (
        []
        if truth is None
        else ["{} of {}".format(*right_facts(text, truth)) for text in (said, result.text)]
    )
    _show_table(stock, result, facts)


def _truth(clip: Path, prompt: str) -> Facts | None:
    """The facts that the clip's own record asks of an answer to this prompt; None where there is no
    such record."""
    try:
        record = json.loads(clip.with_name(f"{clip.name}.json").read_text())
        return dict(record["facts"]) if record["prompt"] == prompt else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no record, or a file of that name that is something else


def _checked(truth: Facts | None, text: str) -> dict[str, Any]:
    if truth is None:
        return {}
    right, total = right_facts(text, truth)
    return {"facts_right": right, "facts": total}


def _warm_up(engine: Engine, inputs: Inputs) -> None:
    """The first call of a process pays for lazy initialisation; neither side should."""
    run_stock(engine.target.backbone, inputs.target, max_new_tokens=4, do_sample=False)
    engine.answer(inputs, max_new_tokens=12).run()


def _printer(engine: Engine, writer: WordWriter) -> Callable[[int], None]:
    ids: list[int] = []
    told = 0

    def show(token: int) -> None:
        nonlocal told
        ids.append(token)
        text = engine.target.processor.tokenizer.decode(ids, skip_special_tokens=True)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            writer.write(Text(text[told:]))
            told = len(text)

    return show


def _figures(stock: StockRun, result: Result) -> dict[str, Any]:
    emitted, stats = len(stock.tokens[0]), result.stats
    return {
        "identical": stock.tokens == result.tokens,
        "stock_tokens_per_second": emitted / stock.e2e,
        "tokens_per_second": stats.tokens_per_second,
        "speedup_e2e": stock.e2e / stats.e2e,
        "speedup_decode": stock.decode / stats.decode if stats.decode else 1.0,
        "mean_acceptance_length": stats.mean_acceptance_length,
    }


def _show_table(stock: StockRun, result: Result, facts: list[str]) -> None:
    figures, stats = _figures(stock, result), result.stats
    supplied = sum(map(sum, result.from_draft))
    rows = [
        ["tokens", str(len(stock.tokens[0])), str(stats.emitted)],
        ["of them supplied by the draft", "", str(supplied)],
        [
            "target forwards after the first token",
            str(len(stock.tokens[0]) - 1),
            str(stats.target_forwards),
        ],
        ["seconds, vision and prefill included", f"{stock.e2e:.3f}", f"{stats.e2e:.3f}"],
        ["tokens/s", f"{figures['stock_tokens_per_second']:.1f}", f"{stats.tokens_per_second:.1f}"],
        ["speedup, end to end", "1.00x", f"{figures['speedup_e2e']:.2f}x"],
        ["speedup, decoding only", "1.00x", f"{figures['speedup_decode']:.2f}x"],
        ["mean acceptance length", "1.00", f"{stats.mean_acceptance_length:.2f}"],
        ["identical", "", "yes" if figures["identical"] else "NO"],
    ]
    if facts:
        rows.append(["facts right, by the clip's own record", *facts])
    table("", ["", "stock generate", "draftlens"], rows)
    definitions("mean_acceptance_length")
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    console.print(
        f"  {platform.machine()}, {torch.get_num_threads()} threads, {versions}",
        style="dim",
        markup=False,
    )

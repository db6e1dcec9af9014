"""`draftlens demo`: one clip described by stock `generate` and by draftlens."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.text import Text

from draftlens.cli.show import (
    DRAFT_STYLE,
    WordWriter,
    console,
    num_supplied,
    print_json,
    result_json,
    say,
    show_definitions,
    show_stream,
    table,
)
from draftlens.core.names import EMBEDDED
from draftlens.core.result import Result
from draftlens.core.text import TextDecoder
from draftlens.engine import Engine
from draftlens.inputs import Inputs
from draftlens.verify import StockRun, run_stock

TOY = (
    "  The pair in the package is a toy for the moving shapes of its own clips: name a "
    "real model with --target (`draftlens pairs` lists some)."
)

_STOCK_WARM_UP_TOKENS = 4
_WARM_UP_TOKENS = 12


@dataclass(frozen=True)
class _Comparison:
    stock: StockRun
    result: Result

    @property
    def num_stock_tokens(self) -> int:
        return len(self.stock.tokens[0])

    def to_dict(self) -> dict[str, Any]:
        """Return the figures that compare the two."""
        stats = self.result.stats
        return {
            "identical": self.stock.tokens == self.result.tokens,
            "stock_tokens_per_second": self.num_stock_tokens / self.stock.e2e,
            "tokens_per_second": stats.tokens_per_second,
            "speedup_e2e": self.stock.e2e / stats.e2e,
            "speedup_decode": self.stock.decode / stats.decode if stats.decode else 1.0,
            "mean_acceptance_length": stats.mean_acceptance_length,
        }


def run_demo(
    engine: Engine, inputs: Inputs, clip: str, prompt: str, max_new_tokens: int, as_json: bool
) -> None:
    """Answer a prompt by stock `generate` and by draftlens, and print a comparison.

    Args:
        as_json: whether the comparison is printed as JSON, without the streamed answers.
    """
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": False}
    _warm_up(engine, inputs)
    if as_json:
        stock = run_stock(engine.target.backbone, inputs.target, **options)
        result = engine.answer(inputs, **options).run()
        figures = _Comparison(stock, result).to_dict()
        print_json({"clip": clip, **figures, "result": result_json(result)})
        return
    comparison = _stream_both(engine, inputs, Path(clip).name, options)
    _show_table(_rows(comparison))
    if engine.target.name == EMBEDDED:
        say(TOY, on=console, style="dim")


def _stream_both(
    engine: Engine, inputs: Inputs, title: str, options: dict[str, Any]
) -> _Comparison:
    name = (title, "bold")
    console.print(Text.assemble(name, f", stock generate of {engine.target.name}:"))
    writer = WordWriter(console)
    stock = run_stock(
        engine.target.backbone, inputs.target, on_token=_printer(engine, writer), **options
    )
    writer.end()
    console.print()
    legend: list[Any] = []
    if console.color_system is not None:
        legend = [" (", ("green", DRAFT_STYLE), ": supplied by the draft)"]
    console.print(Text.assemble(name, ", draftlens", *legend, ":"))
    result = show_stream(engine.answer(inputs, **options), engine.pieces)
    console.print()
    return _Comparison(stock, result)


def _warm_up(engine: Engine, inputs: Inputs) -> None:
    """Do the lazy initialisation of a process before either answer is measured."""
    run_stock(
        engine.target.backbone,
        inputs.target,
        max_new_tokens=_STOCK_WARM_UP_TOKENS,
        do_sample=False,
    )
    engine.answer(inputs, max_new_tokens=_WARM_UP_TOKENS).run()


def _printer(engine: Engine, writer: WordWriter) -> Callable[[int], None]:
    tokenizer = engine.target.processor.tokenizer
    decoder = TextDecoder(lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)))
    return lambda token: writer.write(Text(decoder.add([token])))


def _rows(comparison: _Comparison) -> list[list[str]]:
    figures = comparison.to_dict()
    stock = comparison.stock
    stats = comparison.result.stats
    num_tokens = comparison.num_stock_tokens
    stock_rate = figures["stock_tokens_per_second"]
    return [
        ["tokens", str(num_tokens), str(stats.emitted)],
        ["of these supplied by the draft", "", str(num_supplied(comparison.result))],
        ["target forwards after the first token", str(num_tokens - 1), str(stats.target_forwards)],
        ["seconds, vision and prefill included", f"{stock.e2e:.3f}", f"{stats.e2e:.3f}"],
        ["tokens/s", f"{stock_rate:.1f}", f"{stats.tokens_per_second:.1f}"],
        ["speedup, end to end", "1.00x", f"{figures['speedup_e2e']:.2f}x"],
        ["speedup, decoding only", "1.00x", f"{figures['speedup_decode']:.2f}x"],
        ["mean acceptance length", "1.00", f"{stats.mean_acceptance_length:.2f}"],
        ["identical", "", "yes" if figures["identical"] else "NO"],
    ]


def _show_table(rows: Sequence[Sequence[str]]) -> None:
    table("", ["", "stock generate", "draftlens"], rows)
    show_definitions("mean_acceptance_length")
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    console.print(f"  {machine}, {versions}", style="dim", markup=False)

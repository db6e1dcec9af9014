"""Models with recurrent states: how exact passes over several tokens are, and their costs.

    python benchmarks/recurrent.py --out benchmarks/results/recurrent

Layers of Qwen3.5 with random weights (three with linear attention, then one with full attention),
and beside them the same model with full attention in every layer.

Numbers: logits of one pass over eight tokens against those of eight passes, after prompts of
several lengths; then after an answer that was read eight tokens at a time and one at a time.

Costs: seconds of the processor for passes over several tokens, and for a pass after a rollback,
before which the layers with states read again what was accepted.

Answers: whole answers of the 4B layers with a draft of the 0.8B layers, which is right as often as
a recorded one, by stock `generate`, plain decoding, chains and the default, in turn, once the costs
of both models are measured as `load` does. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from auto_parts.cells import recorded_depths
from replayed_draft import ReplayedDraft
from shared import Benchmark, Report, report_of, table
from simulation import recorded_text
from torch import Tensor
from transformers import DynamicCache, Qwen3_5ForCausalLM, Qwen3_5TextConfig

from draftlens.core.tree import ancestors, attention_mask, chain, depths
from draftlens.drafting.adaptive.history import calibrate_models
from draftlens.models.adapter import Backbone
from draftlens.models.layer_states import StateLayer
from draftlens.request import Request
from draftlens.streaming import Stream
from draftlens.verify import run_stock

WIDTHS = (1, 2, 4, 6)

WIDTH = 8
"""Tokens of a pass that is compared with passes of one token."""

SIZES: Mapping[str, Mapping[str, int]] = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
    "0.8B": {
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
    "4B": {
        "hidden_size": 2560,
        "intermediate_size": 9216,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
}
"""Layers of Qwen3.5 by size, and tiny ones."""

KINDS = {
    "linear attention": ["linear_attention"] * 3 + ["full_attention"],
    "full attention": ["full_attention"] * 4,
}


PROMPTS = ("chat1", "code2", "image2")
"""Recorded texts, which a draft gets right to different degrees."""

PROMPT_TOKENS = 150
CALIBRATION_SECONDS = 6.0
"""As after a minute of loading."""

NEW_TOKENS = 64

METHODS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"method": "plain"},
    "chain of 2": {"num_speculative_tokens": 2},
    "chain of 5": {"num_speculative_tokens": 5},
    "default": {},
}


def language_model(size: str, layers: int, kind: str, dtype: torch.dtype) -> Any:
    """A language model of this size whose answers do not end; `layers` is a multiple of four."""
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        **SIZES[size],
        vocab_size=8192,
        num_hidden_layers=layers,
        layer_types=KINDS[kind] * (layers // 4),
        tie_word_embeddings=False,
        eos_token_id=None,
    )
    return Qwen3_5ForCausalLM(config).eval().to(dtype)


@torch.inference_mode()
def after_prompt(model: Any, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Logits ``[WIDTH, V]`` of one pass, and of `WIDTH` passes, after a prompt of random words."""
    ids = _words(length + WIDTH, seed)
    cache = DynamicCache(config=model.config)
    model(input_ids=ids[:, :length], cache=cache, logits_to_keep=1)
    once = _read(model, ids[:, length:], copy.deepcopy(cache), WIDTH)
    return once, _read(model, ids[:, length:], cache, 1)


@torch.inference_mode()
def after_answer(model: Any, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Logits ``[length, V]`` of words after a prompt of 16, read by passes of `WIDTH` and of one
    token: what the differences of all passes add up to."""
    ids = _words(16 + length, seed)
    found = []
    for width in (WIDTH, 1):
        cache = DynamicCache(config=model.config)
        model(input_ids=ids[:, :16], cache=cache, logits_to_keep=1)
        found.append(_read(model, ids[:, 16:], cache, width))
    return found[0], found[1]


def _words(count: int, seed: int) -> Tensor:
    return torch.randint(0, 8192, (1, count), generator=torch.Generator().manual_seed(seed))


def _read(model: Any, ids: Tensor, cache: Any, width: int) -> Tensor:
    parts = [
        model(input_ids=part, cache=cache).logits[0] for part in torch.split(ids, width, dim=1)
    ]
    return torch.cat(parts)


def _numbers(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for kind in KINDS:
        for dtype in ("float32", "bfloat16"):
            model = language_model(args.size, args.layers, kind, getattr(torch, dtype))
            for where, read in (("prompt", after_prompt), ("answer", after_answer)):
                for length in args.lengths if where == "prompt" else args.answers:
                    pairs = [read(model, length, seed) for seed in range(args.repeats)]
                    yield {
                        "kind": kind,
                        "dtype": dtype,
                        "after": f"{where} of {length:,}",
                        **_compared(pairs),
                    }


def _compared(pairs: list[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    several = torch.cat([first for first, _ in pairs]).float()
    single = torch.cat([second for _, second in pairs]).float()
    changed = several.argmax(-1) != single.argmax(-1)
    best = single.topk(2).values
    margins = (best[:, 0] - best[:, 1])[changed]
    return {
        "positions": len(single),
        "deviation": float(single.std()),
        "largest": float((several - single).abs().max()),
        "changed": int(changed.sum()),
        "margin": float(margins.max()) if len(margins) else 0.0,
    }


def _costs(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for size in args.sizes:
        backbone = Backbone(language_model(size, args.layers, "linear attention", torch.float32))
        timed = _Passes(backbone)
        seconds: dict[str, list[float]] = {}
        for _ in range(args.timings + 1):
            for width in WIDTHS:
                seconds.setdefault(f"pass {width}", []).append(timed.seconds(width, width))
                for kept in {1, width // 2, width - 1} - {0, width}:
                    timed.seconds(width, kept)
                    seconds.setdefault(f"replay {kept}", []).append(timed.seconds(1, 1))
        medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
        one = medians["pass 1"]
        states = sum(
            states.nbytes
            for layer in timed.cache.layers
            for states in getattr(layer, "values", ())
            if isinstance(layer, StateLayer) and states is not None
        )
        yield {
            "size": size,
            "milliseconds": 1e3 * one,
            "megabytes": states / 1e6,
            "passes": {w: medians[f"pass {w}"] / one for w in WIDTHS},
            "replays": {
                name.split()[1]: value / one - 1
                for name, value in sorted(medians.items())
                if name.startswith("replay")
            },
        }


def _answers(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    target_size, draft_size = args.pair
    linear = "linear attention"
    target = Backbone(language_model(target_size, args.layers, linear, torch.float32))
    draft = ReplayedDraft(language_model(draft_size, args.layers, linear, torch.float32))
    ids = torch.arange(PROMPT_TOKENS)[None] % 1000 + 5
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    options = {"max_new_tokens": NEW_TOKENS}
    calibrate_models([target, draft], CALIBRATION_SECONDS)
    for number, prompt in enumerate(PROMPTS):
        text = recorded_text(NEW_TOKENS, recorded_depths("float32", prompt), number)
        seconds: dict[str, list[float]] = {}
        lengths: dict[str, float] = {}
        for _ in range(args.rounds):
            stock = run_stock(target, given, max_new_tokens=NEW_TOKENS)
            seconds.setdefault("stock", []).append(stock.e2e)
            for name, method in METHODS.items():
                draft.play(text, stock.tokens[0], PROMPT_TOKENS)
                request = Request(given, method=method or None, options=options)
                result = Stream(target, draft, request).run()
                assert result.tokens == [list(stock.tokens[0])], f"{name} changed the tokens"
                seconds.setdefault(name, []).append(result.stats.e2e)
                lengths[name] = result.stats.mean_acceptance_length
        yield {
            "prompt": prompt,
            "pair": args.pair,
            "rounds": args.rounds,
            "seconds": seconds,
            "lengths": lengths,
        }


class _Passes:
    """Passes of a model after a prompt of 64 tokens, which are rolled back."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.prompt = backbone.text_prompt(_words(64, 0))
        self.cache = backbone.new_cache(self.prompt, 64)
        backbone.prefill(self.prompt, self.cache)

    def seconds(self, width: int, kept: int) -> float:
        """Seconds of the processor for a pass over `width` tokens, of which the first stay."""
        base = self.cache.lengths[0]
        window = ancestors(chain(width - 1), self.backbone.device)
        positions = self.prompt.positions(depths(chain(width - 1), self.backbone.device)[None])
        began = time.process_time()
        self.backbone.forward(
            _words(width, width), positions, self.cache, attention_mask([base], window)
        )
        took = time.process_time() - began
        self.cache.keep([base], [list(range(kept))])
        return took


PARTS = {"costs": _costs, "answers": _answers, "numbers": _numbers}


def measure(args: argparse.Namespace) -> Iterator[Report]:
    """Rows of the page, as they come."""
    report: Report = {"size": args.size, "layers": args.layers, "prompts": args.repeats}
    recorded = report_of(args)
    for part in PARTS:
        if part not in args.parts:
            report[part] = recorded.get(part, [])
    for part, rows in ((part, PARTS[part](args)) for part in args.parts):
        report[part] = []
        for row in rows:
            report[part].append(row)
            yield report


def page(report: Report) -> list[str]:
    """The tables."""
    columns: dict[str, Any] = {
        "layers": "{kind}",
        "dtype": "{dtype}",
        "after": "{after}",
        "largest difference": "{largest:.1e}",
        "deviation of the logits": "{deviation:.2f}",
        "argmax changed": _changes,
    }
    costs: dict[str, Any] = {
        "size": "{size}",
        "states, MB": "{megabytes:.1f}",
        "pass over 1 token, ms": "{milliseconds:.1f}",
        **{f"{w} tokens": partial(_ratio, "passes", str(w)) for w in WIDTHS[1:]},
        **{f"replay of {n}": partial(_ratio, "replays", str(n)) for n in (1, 2, 3, 5)},
    }
    answers: dict[str, Any] = {
        "draft as right as in": "{prompt}",
        "stock, s": _seconds,
        **{f"{name} (tokens a pass)": partial(_gain, name) for name in METHODS},
        "default over plain": _default_over_plain,
    }
    return [
        f"Costs over that of a pass over one token, {report['layers']} layers, float32, one row, "
        "medians of the processor's seconds.",
        table(report["costs"], costs),
        f"Answers of {NEW_TOKENS} tokens after {PROMPT_TOKENS}, {report['layers']} layers each of "
        "target and draft, float32, prompt included: times the speed of stock `generate`, medians.",
        table(report.get("answers", []), answers),
        f"{report['layers']} layers of the width of Qwen3.5-{report['size']}, random weights, "
        f"{report['prompts']} prompts of random words. A pass over {WIDTH} tokens against {WIDTH} "
        "passes: after a prompt, the logits of the next "
        f"{WIDTH} words; after an answer, those of all its words.",
        table(report.get("numbers", []), columns),
    ]


def _seconds(row: Mapping[str, Any]) -> str:
    return f"{statistics.median(row['seconds']['stock']):.1f}"


def _gain(name: str, row: Mapping[str, Any]) -> str:
    stock, own = (statistics.median(row["seconds"][each]) for each in ("stock", name))
    return f"{stock / own:.2f} ({row['lengths'][name]:.2f})"


def _default_over_plain(row: Mapping[str, Any]) -> str:
    pairs = zip(row["seconds"]["plain"], row["seconds"]["default"], strict=True)
    ratios = sorted(plain / default for plain, default in pairs)
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def _ratio(part: str, key: str, row: Mapping[str, Any]) -> str:
    values = {str(name): value for name, value in row[part].items()}
    return f"{values[key]:.2f}" if key in values else ""


def _changes(row: Mapping[str, Any]) -> str:
    share = f"{row['changed']} of {row['positions']:,}"
    return f"{share} (margin up to {row['margin']:.1e})" if row["changed"] else share


BENCHMARK = Benchmark(
    "recurrent",
    __doc__,
    "Models with recurrent states",
    measure,
    page,
    {
        "--parts": {"nargs": "+", "choices": tuple(PARTS), "default": list(PARTS)},
        "--size": {"choices": tuple(SIZES), "default": "0.8B"},
        "--sizes": ["0.8B", "4B"],
        "--layers": 8,
        "--timings": 9,
        "--pair": ["4B", "0.8B"],
        "--rounds": 3,
        "--lengths": [100, 1000, 4000],
        "--answers": [96, 960],
        "--repeats": 4,
    },
)


if __name__ == "__main__":
    BENCHMARK.main()

"""Memory of twenty models, computed from their published sizes, and measured on three small ones.

Weights, keys and OpenVINO's copy are computed as `draftlens doctor --plan` computes them. Three
models are made with random weights, each in a process of its own, and answer a text: what the
process has grown by stands beside what was computed. Linux only.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from compiled_parts.memory import resident
from shared import Benchmark, Report, table
from transformers import AutoConfig, AutoModelForImageTextToText

import draftlens
from draftlens.models.adapter import Backbone
from draftlens.models.memory_plan import PRECISIONS, MemoryPlan, ModelMemory

SIGLIP = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "patch_size": 14,
}
QWEN = {"vocab_size": 151936}


def layers(hidden: int, inner: int, count: int, heads: int, kv: int, **more: Any) -> dict[str, Any]:
    """Sizes of a language model."""
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": count,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        **more,
    }


QWEN2 = {
    "0.5B": layers(896, 4864, 24, 14, 2, **QWEN),
    "1.5B": layers(1536, 8960, 28, 12, 2, **QWEN),
    "3B": layers(2048, 11008, 36, 16, 2, **QWEN),
    "7B": layers(3584, 18944, 28, 28, 4, vocab_size=152064),
    "14B": layers(5120, 13824, 48, 40, 8, vocab_size=152064),
    "32B": layers(5120, 27648, 64, 40, 8, vocab_size=152064),
    "72B": layers(8192, 29568, 80, 64, 8, vocab_size=152064),
}


def qwen2_vl(size: str, tied: bool = False) -> dict[str, Any]:
    text = QWEN2[size]
    vision = {"depth": 32, "embed_dim": 1280, "hidden_size": text["hidden_size"], "num_heads": 16}
    return _of("qwen2_vl", text, vision, tied)


def qwen2_5_vl(size: str, inner: int = 3420, tied: bool = False) -> dict[str, Any]:
    text = QWEN2[size]
    vision = {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": inner,
        "num_heads": 16,
        "out_hidden_size": text["hidden_size"],
    }
    return _of("qwen2_5_vl", text, vision, tied)


def qwen3_vl(text: dict[str, Any], vision: tuple[int, int, int], tied: bool) -> dict[str, Any]:
    depth, hidden, inner = vision
    tower = {
        "depth": depth,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_heads": 16,
        "out_hidden_size": text["hidden_size"],
    }
    return _of("qwen3_vl", {**text, "head_dim": 128, **QWEN}, tower, tied)


def llava(size: str) -> dict[str, Any]:
    text = {"7B": layers(4096, 11008, 32, 32, 32), "13B": layers(5120, 13824, 40, 40, 40)}[size]
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 336,
        "patch_size": 14,
        "projection_dim": 768,
        "vocab_size": 32000,
    }
    return _of("llava", {"model_type": "llama", **text, "vocab_size": 32064}, vision, False)


def onevision(size: str, vocabulary: int, tied: bool) -> dict[str, Any]:
    text = {"model_type": "qwen2", **QWEN2[size], "vocab_size": vocabulary}
    vision = {"model_type": "siglip_vision_model", **SIGLIP, "num_hidden_layers": 26}
    vision |= {"image_size": 384, "vision_use_head": False}
    return _of("llava_onevision", text, vision, tied)


def internvl3(size: str) -> dict[str, Any]:
    text = {"model_type": "qwen2", **QWEN2[size], "vocab_size": 151674}
    vision = {
        "model_type": "internvl_vision",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": [448, 448],
        "patch_size": [14, 14],
        "attention_bias": True,
    }
    return _of("internvl", text, vision, False)


def smolvlm(text: dict[str, Any], vision: Mapping[str, Any], scale: int) -> dict[str, Any]:
    text = {"model_type": "llama", **text, "vocab_size": 49280}
    made = _of("smolvlm", text, {**vision, "image_size": 512}, False)
    return {**made, "scale_factor": scale}


def gemma3(text: dict[str, Any], window: int) -> dict[str, Any]:
    sizes = {**text, "vocab_size": 262208, "sliding_window": window}
    return _of("gemma3", sizes, {**SIGLIP, "image_size": 896, "vision_use_head": False}, True)


def _of(
    kind: str, text: Mapping[str, Any], vision: Mapping[str, Any], tied: bool
) -> dict[str, Any]:
    return {
        "model_type": kind,
        "text_config": {**text, "tie_word_embeddings": tied},
        "vision_config": dict(vision),
        "tie_word_embeddings": tied,
    }


SMALL_TOWER = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "patch_size": 16,
}
SMOL_2B = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27}
SMOL_2B |= {"num_attention_heads": 16, "patch_size": 14}

MODELS: dict[str, dict[str, Any]] = {
    "SmolVLM2-256M": smolvlm(layers(576, 1536, 30, 9, 3), SMALL_TOWER, 4),
    "SmolVLM2-500M": smolvlm(layers(960, 2560, 32, 15, 5), SMALL_TOWER, 4),
    "SmolVLM2-2.2B": smolvlm(layers(2048, 8192, 24, 32, 32), SMOL_2B, 3),
    "LLaVA-OneVision-0.5B": onevision("0.5B", 152000, True),
    "LLaVA-OneVision-7B": onevision("7B", 152128, False),
    "InternVL3-1B": internvl3("0.5B"),
    "InternVL3-2B": internvl3("1.5B"),
    "InternVL3-8B": internvl3("7B"),
    "Qwen2-VL-2B": qwen2_vl("1.5B", True),
    "Qwen2-VL-7B": qwen2_vl("7B"),
    "Qwen2.5-VL-3B": qwen2_5_vl("3B", tied=True),
    "Qwen2.5-VL-7B": qwen2_5_vl("7B"),
    "Qwen2.5-VL-32B": qwen2_5_vl("32B", 3456),
    "Qwen2.5-VL-72B": qwen2_5_vl("72B", 3456),
    "Qwen3-VL-2B": qwen3_vl(layers(2048, 6144, 28, 16, 8), (24, 1024, 4096), True),
    "Qwen3-VL-8B": qwen3_vl(layers(4096, 12288, 36, 32, 8), (27, 1152, 4304), False),
    "LLaVA-1.5-7B": llava("7B"),
    "LLaVA-1.5-13B": llava("13B"),
    "Gemma-3-4B": gemma3(layers(2560, 10240, 34, 8, 4, head_dim=256), 1024),
    "Gemma-3-27B": gemma3(layers(5376, 21504, 62, 32, 16, head_dim=128), 1024),
}
"""Sizes as in the models' config.json."""

DRAFTS = {
    "SmolVLM2-2.2B": "SmolVLM2-256M",
    "LLaVA-OneVision-7B": "LLaVA-OneVision-0.5B",
    "InternVL3-8B": "InternVL3-1B",
    "Qwen2-VL-7B": "Qwen2-VL-2B",
    "Qwen2.5-VL-7B": "Qwen2.5-VL-3B",
    "Qwen2.5-VL-32B": "Qwen2.5-VL-7B",
    "Qwen2.5-VL-72B": "Qwen2.5-VL-7B",
    "Qwen3-VL-8B": "Qwen3-VL-2B",
    "LLaVA-1.5-13B": "LLaVA-1.5-7B",
    "Gemma-3-27B": "Gemma-3-4B",
}
MEASURED = ("SmolVLM2-256M", "SmolVLM2-500M", "LLaVA-OneVision-0.5B")
PROMPT = 400


def config_of(name: str) -> Any:
    sizes = dict(MODELS[name])
    return AutoConfig.for_model(sizes.pop("model_type"), **sizes)


@cache
def memory_of(name: str) -> ModelMemory:
    return ModelMemory.of(config_of(name))


def computed(name: str) -> dict[str, Any]:
    """Bytes of a model and of its known draft."""
    own = memory_of(name)
    draft = memory_of(DRAFTS[name]) if name in DRAFTS else None
    float32 = MemoryPlan(own, draft, "float32", has_copy=True)
    return {
        "model": name,
        "parameters": own.parameters,
        **{precision: own.weights(precision) for precision in PRECISIONS},
        "copy": 4.0 * own.text,
        "keys": own.keys(1000, 2),
        "draft": DRAFTS.get(name, ""),
        "draft_bytes": 0.0 if draft is None else draft.weights("bfloat16"),
        "in_24_gb": MemoryPlan(own, draft, "bfloat16").most_tokens(24e9),
        "float32_with_copies": float32.fixed,
    }


def figures(name: str, max_new_tokens: int) -> dict[str, float]:
    """Bytes that a process grows by, and those that are computed; float32."""
    transformers.utils.logging.disable_progress_bar()
    before = resident("VmRSS") * 2**20
    config = config_of(name)
    expected = ModelMemory.of(config)
    torch.manual_seed(0)
    model: Any = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    gc.collect()
    weights = resident("VmRSS") * 2**20 - before
    backbone = Backbone(model)
    ids = torch.arange(PROMPT)[None] + 5
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "do_sample": False,
        "method": "plain",
    }
    result = draftlens.generate(backbone, inputs, compile=False, **options)
    modules = resident("VmRSS") * 2**20 - before
    for _ in range(2):  # passes are prepared with the second call
        draftlens.generate(backbone, inputs, compile="openvino", **options)
    gc.collect()
    return {
        "weights": weights,
        "weights_computed": expected.weights("float32"),
        "keys": result.stats.target_cache_bytes,
        "keys_computed": expected.keys(PROMPT + max_new_tokens, 4),
        "modules": modules,
        "openvino": resident("VmRSS") * 2**20 - before,
        "openvino_computed": expected.weights("float32")
        + 4.0 * expected.text
        + expected.keys(PROMPT + max_new_tokens, 4),
    }


def measure(args: argparse.Namespace) -> Report:
    """All models by arithmetic, and the measured ones; with `--model` those of this process."""
    if args.model:
        print(json.dumps(figures(args.model, args.max_new_tokens)))
        raise SystemExit(0)
    rows = [computed(name) for name in MODELS]
    script = str(Path(sys.argv[0]))
    measured = []
    for name in MEASURED:
        command = [sys.executable, script, *sys.argv[1:], "--model", name]
        output = subprocess.run(command, check=True, capture_output=True, text=True)
        measured.append({"model": name, **json.loads(output.stdout.splitlines()[-1])})
    return {"rows": rows, "measured": measured}


def computed_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The models by arithmetic."""

    def gigabytes(key: str) -> Any:
        return lambda row: f"{row[key] / 1e9:.1f}" if row[key] else ""

    columns: dict[str, Any] = {
        "model": "{model}",
        "parameters, billions": lambda row: f"{row['parameters'] / 1e9:.2f}",
        "float32": gigabytes("float32"),
        "bfloat16": gigabytes("bfloat16"),
        "8 bits": gigabytes("8bit"),
        "4 bits": gigabytes("4bit"),
        "OpenVINO's copy": gigabytes("copy"),
        "keys of 1,000 tokens, MB": lambda row: f"{row['keys'] / 1e6:.0f}",
        "draft": "{draft}",
        "draft, bfloat16": gigabytes("draft_bytes"),
        "tokens in 24 GB": lambda row: f"{row['in_24_gb']:,}" if row["in_24_gb"] else "none",
    }
    return table(rows, columns)


def page(report: Report) -> list[str]:
    """The table by arithmetic, and the measured one."""

    def beside(key: str) -> Any:
        def cell(row: Any) -> str:
            found, expected = row[key], row[f"{key}_computed"]
            return f"{found / 1e6:,.0f} / {expected / 1e6:,.0f} = {found / expected:.2f}"

        return cell

    checked: dict[str, Any] = {
        "measured / computed, MB": "{model}",
        "weights": beside("weights"),
        f"keys of {PROMPT} tokens and the answer": beside("keys"),
        "weights, copy and keys by OpenVINO": beside("openvino"),
    }
    return [
        "By arithmetic, in GB (10^9 bytes), keys in bfloat16. The last column has the bfloat16 "
        "weights of target and draft, 1.1 GB for the process, and the keys of one row in both.",
        computed_table(report["rows"]),
        "Measured: random weights in float32, growth of the process, a text as prompt.",
        table(report["measured"], checked),
    ]


BENCHMARK = Benchmark(
    "memory",
    __doc__,
    "Memory of models",
    measure,
    page,
    {"--max-new-tokens": 16, "--model": ""},
)

if __name__ == "__main__":
    BENCHMARK.main()

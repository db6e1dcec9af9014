"""Helpers that the benchmark scripts share: prompts, ways of answering, interleaved timing, and the
environment."""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import re
import statistics
import string
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from draftlens_lab.evaluate.answers import dialogue, render_side
from draftlens_lab.measure.environment import environment as machine_environment
from draftlens_lab.measure.statistics import format_quartiles, quartiles
from draftlens_lab.measure.tables import markdown_table
from draftlens_lab.world import HELD_OUT, Turn, marked_caption, sample_scene
from draftlens_lab.world.samples import Sample

import draftlens
from draftlens.core.files import write_json, write_text
from draftlens.core.tree import Topology, ancestors, attention_mask, chain, depths
from draftlens.engine import Engine
from draftlens.inputs import Inputs
from draftlens.media.files import SUFFIXES
from draftlens.models.adapter import Backbone
from draftlens.models.known_pairs import EMBEDDED
from draftlens.models.prompt import Prompt
from draftlens.verify import assistant_settings, run_stock

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")
Json = TypeVar("Json", bound=Mapping[str, Any])

Report = dict[str, Any]
"""The figures of a benchmark as JSON values."""

Run = dict[str, Any]
"""One answer: `tokens`, seconds `e2e` and `decode`, and further figures of the engine."""

Answerer = Callable[[Inputs, dict[str, Any]], Run]
"""Answers a prompt with these options of `generate`."""

Case = Callable[[], object]
"""A call to be timed."""

SIDE = 64
PROMPT = "Describe the video."
WARM_UPS = 2
"""Calls of each case that are not timed: they fill caches."""

PAIR: Mapping[str, Any] = {
    "--target": {"default": "embedded", "help": "folder or Hub id [default: %(default)s]"},
    "--draft": {"default": "auto", "help": "folder or Hub id; by default the target's known draft"},
    "--device": {"default": "cpu", "help": "of both models [default: %(default)s]"},
    "--videos": {
        "type": Path,
        "help": "folder of clips to caption in place of those of the world; questions stay about "
        "clips of the world",
    },
}
"""Options of benchmarks that measure any pair; see `pair_of`."""


@dataclass(frozen=True)
class Benchmark:
    """A measurement that runs from the command line and writes a report and its page.

    Args:
        name: of the report in `benchmarks/results`.
        about: text for ``--help``.
        title: of the page.
        measure: returns the report for the parsed options, or yields it after each of its parts.
        page: returns the paragraphs and tables of the page of a report.
        options: defaults of further options by name, or arguments of `add_argument`. They may also
            replace the defaults of the options that every benchmark has.
    """

    name: str
    about: str | None
    title: str
    measure: Callable[[argparse.Namespace], Report | Iterator[Report]]
    page: Callable[[Report], Iterable[str]]
    options: Mapping[str, Any] = field(default_factory=dict)

    def main(self) -> None:
        """Measure and write the report and the page, or the page alone."""
        args = self.parser().parse_args()
        if args.page:
            write_text(args.out.with_suffix(".md"), self.markdown(report_of(args)))
            return
        configure(args.threads)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        prediction = args.prediction or report_of(args).get("prediction")
        kept = {"prediction": prediction} if prediction else {}
        found = self.measure(args)
        for report in found if isinstance(found, Iterator) else (found,):
            has_parts = any(isinstance(v, dict) and "environment" in v for v in report.values())
            facts = {} if has_parts else {"environment": environment(args)}
            whole = {**facts, **kept, **report}
            write_json(args.out.with_suffix(".json"), whole, indent=None)
            write_text(args.out.with_suffix(".md"), self.markdown(whole))
        print(self.markdown(report_of(args)))

    def parser(self) -> argparse.ArgumentParser:
        """A parser with the options of every benchmark and with those of this one."""
        parser = argparse.ArgumentParser(
            description=self.about, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        out = Path("benchmarks/results", self.name)
        parser.add_argument("--out", type=Path, default=out, help="report without suffix")
        parser.add_argument("--page", action="store_true", help="write the page of OUT.json only")
        parser.add_argument("--prediction", help="what is expected; kept in the report")
        common = {"--repeats": 1, "--threads": 1, "--max-new-tokens": 320}
        for option, value in {**common, **self.options}.items():
            parser.add_argument(option, **_argument(value))
        return parser

    def markdown(self, report: Report) -> str:
        """The page of a report."""
        blocks = [f"# {self.title}", *filter(None, self.page(report))]
        if "outcome" in report:
            blocks.append(f"Outcome. {report['outcome']}")
        if "environment" in report:
            blocks.append(f"<sub>{environment_line(report['environment'])}</sub>")
        return "\n\n".join(blocks) + "\n"


def _argument(value: Any) -> dict[str, Any]:
    """Arguments of `add_argument` for a default."""
    if isinstance(value, dict):
        return value
    if value is False:
        return {"action": "store_true"}
    if isinstance(value, list):
        return {"type": type(value[0]), "nargs": "+", "default": value}
    return {"type": type(value), "default": value}


def report_of(args: argparse.Namespace) -> Report:
    """The report of an earlier run; empty if there is none."""
    file = args.out.with_suffix(".json")
    found: Report = json.loads(file.read_text()) if file.exists() else {}
    return found


def run_part(description: str | None, parts: Mapping[str, str]) -> None:
    """Run the part of a benchmark that the first argument names.

    Args:
        description: text for ``--help``.
        parts: modules by name, each with a `BENCHMARK`; only the one that is named is imported.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=tuple(parts))
    args = parser.parse_args(sys.argv[1:2])
    # The part reads its options from the command line as if it had been started itself.
    sys.argv = [f"{sys.argv[0]} {args.part}", *sys.argv[2:]]
    importlib.import_module(parts[args.part]).BENCHMARK.main()


SCALES = {"ms": 1e3, "MiB": 2**-20, "GB": 1e-9}
"""Factors of seconds and of bytes by the units that a cell may end its format with."""


class _Cells(string.Formatter):
    def get_value(self, key: Any, args: Any, kwargs: Any) -> Any:
        return kwargs.get(key)

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return ""
        for unit, factor in SCALES.items():
            if format_spec.endswith(unit):
                return format(factor * value, format_spec.removesuffix(unit) + "f")
        if isinstance(value, bool):
            return "yes" if value else "NO"
        return str(super().format_field(value, format_spec))


def table(rows: Iterable[Any], columns: Mapping[str, str | Callable[[Any], object]]) -> str:
    """A Markdown table.

    Args:
        rows: one value, usually a mapping, for each row.
        columns: cells by heading, as a format of the row's values, such as ``{seconds:.1ms}``, or
            as a function of the row. Values that a row lacks are empty.
    """
    cells = [
        [
            _Cells().vformat(cell, (), row) if isinstance(cell, str) else str(cell(row))
            for cell in columns.values()
        ]
        for row in rows
    ]
    return aligned(tuple(columns), cells)


def grid(corner: str, rows: Iterable[R], columns: Iterable[C], cell: Callable[[R, C], str]) -> str:
    """A Markdown table whose cells follow from the names of their row and of their column."""
    names = list(columns)
    cells = [[str(row), *(cell(row, name) for name in names)] for row in rows]
    return aligned((corner, *map(str, names)), cells)


def aligned(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A Markdown table with columns of words to the left and others to the right."""
    words = [
        index
        for index, column in enumerate(zip(*cells, strict=True))
        if index == 0 or not all(re.match(r"[-+]?[\d.]|$", cell) for cell in column)
    ]
    return "\n".join(markdown_table(columns, cells, words))


def measured_parts(
    parts: Mapping[str, Callable[[T, argparse.Namespace], Any]],
    subject: T,
    args: argparse.Namespace,
) -> Iterator[Report]:
    """The report of an earlier run with the parts of `--parts` measured anew, after each of them.

    Args:
        parts: by name, each returns its figures for the subject and the options.
        subject: what is measured, usually the engine.
        args: options of the benchmark.
    """
    report = report_of(args)
    for name in args.parts.split(","):
        report[name] = {"found": parts[name](subject, args), "environment": environment(args)}
        yield report


def parts_page(report: Report, pages: Mapping[str, Callable[[Any], Iterable[str]]]) -> list[str]:
    """The paragraphs and tables of all parts of a report, each with its environment."""
    blocks = []
    for name, page in pages.items():
        if name in report:
            part = report[name]
            facts = f"<sub>{name}: {environment_line(part['environment'])}</sub>"
            blocks += [*page(part["found"]), facts]
    return blocks


def medians(rows: Iterable[Mapping[str, Any]], *keys: str) -> list[dict[str, Any]]:
    """The rows with equal values of some keys as one, with the medians of the other values."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [
        {
            **dict(zip(keys, group, strict=True)),
            **{
                name: statistics.median(row[name] for row in members)
                for name, value in members[0].items()
                if name not in keys and isinstance(value, int | float)
            },
        }
        for group, members in groups.items()
    ]


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Ratios that are paired by run."""
    return [a / b for a, b in zip(above, below, strict=True)]


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of ratios that are paired by run."""
    return statistics.median(ratios(above, below))


def ratio_line(slow: Sequence[float], fast: Sequence[float]) -> str:
    """Median and quartiles of ratios that are paired by run."""
    return format_quartiles(quartiles(ratios(slow, fast)))


def range_line(values: Sequence[float]) -> str:
    """Median, least and greatest value."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def configure(threads: int) -> None:
    """Set the number of threads and hide messages and progress bars of the libraries."""
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def digest(*models: torch.nn.Module) -> str:
    """Names the weights of models: rows of an earlier run are those of the same ones."""
    found = hashlib.sha256()
    for model in models:
        for name, tensor in model.state_dict().items():
            found.update(name.encode())
            found.update(tensor.cpu().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()[:12]


def models_digest(engine: Engine) -> str:
    """Names the weights of target and draft."""
    return digest(*(backbone.model for backbone in backbones(engine)))


def remembered(folder: Path | None, name: str, make: Callable[[], Json]) -> Json:
    """A JSON value that an earlier run left in a folder, or a new one that is left there."""
    if folder is None:
        return make()
    file = folder / f"{name}.json"
    if file.exists():
        found: Json = json.loads(file.read_text())
        return found
    value = make()
    folder.mkdir(parents=True, exist_ok=True)
    write_json(file, value, indent=None)
    return value


def environment(args: argparse.Namespace) -> dict[str, Any]:
    """Machine, versions and options of a benchmark."""
    facts = machine_environment(torch.device(getattr(args, "device", "cpu")))
    packages = facts["packages"]
    models = {name: getattr(args, name) for name in ("target", "draft") if hasattr(args, "dtype")}
    return {
        **models,
        "processor": facts["machine"],
        "cores": os.cpu_count(),
        "threads": args.threads,
        "python": facts["python"],
        "torch": packages["torch"],
        "transformers": packages["transformers"],
        "draftlens": packages["draftlens"],
        "commit": facts["commit"],
        "repeats": args.repeats,
        "max_new_tokens": args.max_new_tokens,
        "dtype": getattr(args, "dtype", "float32"),
    }


def environment_line(facts: Mapping[str, Any]) -> str:
    """An environment as one line."""
    return ", ".join(f"{name} {value}" for name, value in facts.items())


@dataclass(frozen=True)
class FilmedSample(Sample):
    """A clip of a file with the request for its caption, whose right answer is not known."""

    file: Path = Path()


FILES: list[Path] = []
"""Clips in place of those of the world, which `pair_of` notes."""


def pair_of(args: argparse.Namespace, **options: Any) -> Engine:
    """The pair that the options of `PAIR` name. Raises ConfigError if `--videos` has no clips."""
    FILES[:] = _clips_of(args.videos) if args.videos is not None else []
    engine = draftlens.load(args.target, draft=args.draft, device=args.device, **options)
    args.dtype = str(engine.target.backbone.model.dtype).removeprefix("torch.")
    return engine


def _clips_of(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.glob("*") if file.suffix.lower() in SUFFIXES["video"])
    if not files:
        raise draftlens.ConfigError(f"there are no clips in {folder}")
    return files


def caption_sample(seed: int) -> Sample:
    """A held-out clip with the request for its caption; with `--videos` the next clip of the
    folder, from the first again after the last."""
    if FILES:
        turn = Turn(PROMPT, "", "caption")
        return FilmedSample("clip", (), (turn,), file=FILES[seed % len(FILES)])
    scene = sample_scene(HELD_OUT + seed)
    return Sample("clip", (scene,), (Turn(PROMPT, marked_caption(scene), "caption"),))


def sample_inputs(engine: Engine, sample: Sample, frames: int) -> Inputs:
    """The processors' output for the last question of a sample that is shown as this number of
    frames. Questions before it have their right answers."""
    if isinstance(sample, FilmedSample):
        question = sample.turns[-1].question
        return engine.read(question, video=str(sample.file), num_frames=frames)
    is_own = engine.target.name != EMBEDDED
    side = render_side(engine.target.processor) if is_own else SIDE
    return engine.process([dialogue(sample, frames, side)])


def encoded_prompt(backbone: Backbone, inputs: Mapping[str, Any]) -> Prompt:
    """A prompt as the model reads it."""
    return backbone.encode(backbone.prepare(inputs, max_new_tokens=1))


def backbones(engine: Engine) -> tuple[Backbone, Backbone]:
    """Backbones of target and draft."""
    assert engine.draft is not None
    return engine.target.backbone, engine.draft.backbone


def stock_answerer(target: Backbone, **extra: Any) -> Answerer:
    """Answers by stock `generate`.

    Args:
        target: the model.
        extra: further arguments of `run_stock`.
    """

    def answer(inputs: Inputs, options: dict[str, Any]) -> Run:
        run = run_stock(target, inputs.target, **options, **extra)
        return {"tokens": run.tokens, "e2e": run.e2e, "decode": run.decode}

    return answer


def assisted_answerer(target: Backbone, draft: Backbone, settings: dict[str, Any]) -> Answerer:
    """Answers by stock assisted generation.

    Args:
        target, draft: the models.
        settings: fields of the draft's generation config.
    """
    answer_with_draft = stock_answerer(target, assistant=draft.model)

    def answer(inputs: Inputs, options: dict[str, Any]) -> Run:
        with assistant_settings(draft.model, settings):
            return answer_with_draft(inputs, options)

    return answer


def engine_answerer(engine: Engine, method: Any) -> Answerer:
    """Answers by one of our methods."""

    def answer(inputs: Inputs, options: dict[str, Any]) -> Run:
        result = engine.answer(inputs, method=method, **options).run()
        return {"tokens": result.tokens, **result.stats.to_dict()}

    return answer


def interleaved_runs(
    answerers: Mapping[str, Answerer],
    prompts: Iterable[tuple[Inputs, dict[str, Any]]],
    repeats: int,
    warm_up: bool = False,
) -> dict[str, list[Run]]:
    """Answers to prompts with their options by way, with the ways interleaved.

    Args:
        answerers: ways of answering.
        prompts: with their options.
        repeats: how often each is answered.
        warm_up: whether all ways answer the first prompt once before.
    """
    runs: dict[str, list[Run]] = {way: [] for way in answerers}
    asked = list(prompts)
    for answer in answerers.values() if warm_up else ():
        answer(asked[0][0], dict(asked[0][1]))
    for repeat in range(repeats):
        for inputs, options in asked:
            for way, answer in rotated(list(answerers.items()), repeat):
                runs[way].append(answer(inputs, dict(options)))
    return runs


def against_stock(runs: Sequence[Run], stock: Sequence[Run]) -> dict[str, Any]:
    """Figures of one way beside stock `generate`, paired by prompt and repeat."""
    pairs = list(zip(stock, runs, strict=True))
    per_pass = [run["mean_acceptance_length"] for run in runs if "passes" in run]
    speedups = [other["e2e"] / run["e2e"] for other, run in pairs]
    return {
        "decode speedup": statistics.median(o["decode"] / run["decode"] for o, run in pairs),
        "speedup": statistics.median(speedups),
        "lowest": min(speedups),
        "highest": max(speedups),
        "tokens a pass": statistics.mean(per_pass) if per_pass else None,
        "tokens": sum(len(run["tokens"][0]) for run in runs),
        "differing answers": sum(other["tokens"] != run["tokens"] for other, run in pairs),
    }


AGAINST_STOCK = {
    "decode speedup": "{decode speedup:.2f}",
    "speedup": "{speedup:.2f}",
    "lowest": "{lowest:.2f}",
    "highest": "{highest:.2f}",
    "tokens a pass": "{tokens a pass:.2f}",
    "tokens": "{tokens}",
    "differing answers": "{differing answers}",
}
"""Columns of `against_stock`."""


def rotated(items: Sequence[T], offset: int) -> list[T]:
    """The items from another first one in each repeat, so that the place of an item in the order
    changes."""
    offset %= len(items)
    return [*items[offset:], *items[:offset]]


def interleaved_seconds(
    cases: Mapping[str, Case], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each case by its name, with the cases interleaved.

    The clock `time.process_time` counts the processor's time, which other programs hardly change;
    it is that of the wall on one thread of an idle machine.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(WARM_UPS + repeats):
        for name, case in rotated(list(cases.items()), number):
            start = clock()
            case()
            if number >= WARM_UPS:
                seconds[name].append(clock() - start)
    return seconds


def median_seconds(cases: Mapping[str, Case], repeats: int) -> dict[str, float]:
    """Median of `interleaved_seconds` of each case."""
    times = interleaved_seconds(cases, repeats)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


@dataclass(frozen=True)
class PrefilledPrompt:
    """A prompt of one row in a model's cache.

    Args:
        backbone: the model.
        prompt: the prompt.
        cache: holds the prompt.
    """

    backbone: Backbone
    prompt: Prompt
    cache: Any

    @classmethod
    def of(cls, backbone: Backbone, prompt: Prompt, room: int = 60) -> PrefilledPrompt:
        """Read a prompt into a new cache with room for this number of further tokens."""
        cache = backbone.new_cache(prompt, room)
        backbone.prefill(prompt, cache)
        return cls(backbone, prompt, cache)

    def forward_case(self, tree: Topology) -> Case:
        """One forward of a tree of tokens and its root after the prompt, which is then removed from
        the cache."""
        tokens = torch.arange(len(tree) + 1)[None] + 5
        positions = self.prompt.positions(depths(tree)[None])
        lengths = list(self.cache.lengths)
        mask = attention_mask(lengths, ancestors(tree))

        def forward() -> None:
            self.backbone.forward(tokens, positions, self.cache, mask)
            self.cache.truncate(lengths)

        return forward

    def chain_case(self, num_tokens: int) -> Case:
        """One forward of this number of consecutive tokens, see `forward_case`."""
        return self.forward_case(chain(num_tokens - 1))


def predicted_speedup(
    tau: float, gamma: int, costs: Mapping[str, float], draft: str = "draft"
) -> float:
    """Speedup of decoding with a chain of draft tokens over plain decoding, equation 3 of SpecVLM:
    τ / (γ·Td/Tt + Tt(γ)/Tt).

    Args:
        tau: mean acceptance length.
        gamma: draft tokens per pass.
        costs: seconds of forwards, such as those of `target(1)`.
        draft: name of the draft's forwards in `costs`.
    """
    target = costs["target(1)"]
    return tau / (gamma * costs[f"{draft}(1)"] / target + costs[f"target({gamma + 1})"] / target)


def milliseconds_line(costs: Mapping[str, float]) -> str:
    """Seconds by name as one line of milliseconds."""
    return ", ".join(f"{name} {1e3 * seconds:.2f}" for name, seconds in costs.items())

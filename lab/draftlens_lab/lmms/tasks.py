"""Writes held-out samples of the procedural world as tasks of lmms-eval."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from draftlens_lab.evaluate.samples import FAMILIES, caption_samples, question_samples
from draftlens_lab.lmms import task_functions
from draftlens_lab.world import render, render_still
from draftlens_lab.world.entries import MediaFormat, check_fonts
from draftlens_lab.world.export import import_datasets, without_progress_bars
from draftlens_lab.world.files import atomic_folder, png, write_clip
from draftlens_lab.world.samples import Sample

GROUP = "draftlens_world"
"""The name of all tasks together."""

ROUNDS = "follow-up"
"""The family whose question comes after another one."""

CAPTION_TOKENS = 512
ANSWER_TOKENS = 64

Progress = Callable[[int, int], None]
"""Called with (samples written, samples to write)."""

Families = Mapping[str, Sequence[Sample]]

_TASK = """task: {name}
dataset_path: parquet
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: {output}
doc_to_visual: !function utils.doc_to_visual
doc_to_text: !function utils.doc_to_text
doc_to_messages: !function utils.doc_to_messages
doc_to_target: !function utils.doc_to_target
process_results: !function utils.process_results
generation_kwargs:
  max_new_tokens: {tokens}
  do_sample: false
  until: []
metric_list:
{metrics}
metadata:
  version: 1.0
"""

_METRIC = """  - metric: {name}
    aggregation: mean
    higher_is_better: true"""


def write_tasks(
    folder: Path,
    samples: int,
    media: MediaFormat,
    seed: int = 0,
    on_sample: Progress | None = None,
) -> dict[str, int]:
    """Write a folder for `lmms-eval --include_path`.

    Args:
        folder: new or empty.
        samples: of each family of questions, and of captions of clips and of pictures.
        seed: selects other scenes, as in `draftlens evaluate`.

    Returns:
        The number of samples of each task.
    """
    check_fonts()
    tasks = _tasks(samples, seed)
    total = sum(len(each) for families in tasks.values() for each in families.values())
    done = 0
    with atomic_folder(folder) as content:
        for part in ("data", "clips"):
            (content / part).mkdir()
        for name, families in tasks.items():
            rows: list[dict[str, Any]] = []
            for family, of_family in families.items():
                for sample in of_family:
                    rows.append(_row(content, family, len(rows), sample, name, media))
                    done += 1
                    if on_sample:
                        on_sample(done, total)
            _write_rows(content / "data" / f"{name}.parquet", rows)
            (content / f"{GROUP}_{name}.yaml").write_text(_task(name, families), encoding="utf-8")
        members = "".join(f"  - {GROUP}_{name}\n" for name in tasks)
        group = f"group: {GROUP}\ntask:\n{members}"
        (content / f"{GROUP}.yaml").write_text(group, encoding="utf-8")
        shutil.copyfile(task_functions.__file__, content / "utils.py")
    return {f"{GROUP}_{name}": sum(map(len, families.values())) for name, families in tasks.items()}


def _tasks(samples: int, seed: int) -> dict[str, Families]:
    questions = {
        family.replace(" ", "_"): question_samples(family, samples, seed) for family in FAMILIES
    }
    rounds = {"follow_up": questions.pop(ROUNDS)}
    captions = {
        f"{kind}_caption": caption_samples(kind, samples, seed) for kind in ("clip", "picture")
    }
    return {"captions": captions, "questions": questions, "rounds": rounds}


def _task(name: str, families: Families) -> str:
    return _TASK.format(
        name=f"{GROUP}_{name}",
        file=f"data/{name}.parquet",
        output="generate_until_multi_round" if name == "rounds" else "generate_until",
        tokens=CAPTION_TOKENS if name == "captions" else ANSWER_TOKENS,
        metrics="\n".join(_METRIC.format(name=each) for each in ("exact", "words", *families)),
    )


def _row(
    folder: Path, family: str, number: int, sample: Sample, task: str, media: MediaFormat
) -> dict[str, Any]:
    clip, pictures = "", []
    if sample.media == "video":
        clip = f"clips/{task}-{number}.mp4"
        frames = render(sample.scenes[0], media.frames, media.side)
        write_clip(folder / clip, frames, media.rate)
    else:
        pictures = [png(render_still(scene, media.side)) for scene in sample.scenes]
    return {
        "family": family,
        "images": [{"bytes": picture, "path": None} for picture in pictures],
        "clip": clip,
        "questions": [turn.question for turn in sample.turns],
        "answers": [turn.answer for turn in sample.turns],
    }


def _write_rows(file: Path, rows: list[dict[str, Any]]) -> None:
    library = import_datasets()
    text = library.Value("string")
    columns = {
        "family": text,
        "images": library.List(library.Image()),
        "clip": text,
        "questions": library.List(text),
        "answers": library.List(text),
    }
    with without_progress_bars(library):
        dataset = library.Dataset.from_list(rows, features=library.Features(columns))
        dataset.to_parquet(str(file))

"""Writes the world as files to train and evaluate other models on.

The formats are LLaVA's JSON and a folder for Hugging Face ``datasets``. The dialogues are those of
``samples.py``, and seeds from HELD_OUT on make the test split. A folder appears only when it
is complete, so that an interrupted export cannot be mistaken for a complete one.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens_lab.world.entries import (
    SPLITS,
    MediaFormat,
    Progress,
    Seeds,
    WorldEntry,
    entries,
    seeds_of,
)
from draftlens_lab.world.files import RATE, atomic_folder, png

__all__ = ["export_datasets", "export_llava", "seeds_of"]

SHARD = 500  # rows of a Parquet file

_CARD = """---
configs:
- config_name: default
  data_files:
{files}
---

# draftlens's procedural world

Clips and pictures of moving shapes and words, with dialogues in which every answer is the only
right answer. `datasets.load_dataset(FOLDER)` reads this folder; `video` is a path relative to it.
{counts}. The test split shows combinations (of a colour with a shape, a motion or a word) that the
training split never shows. Made by `draftlens world`; docs/world.md of draftlens explains the
columns.
"""


def export_llava(
    folder: Path,
    seeds: Seeds,
    *,
    frames: int = 96,
    rate: int = RATE,
    side: int = 256,
    on_sample: Progress | None = None,
) -> dict[str, int]:
    """Write ``train.json`` and ``test.json`` in LLaVA's format, and the media beside them.

    Args:
        seeds: seeds by kind, of ``samples.KINDS``; :func:`seeds_of` creates them.
        rate: frames per second.
        side: width and height of frames and pictures, in pixels; even.

    Returns:
        The number of entries of each split. A split without entries has no file.
    """
    media_format = MediaFormat(frames, rate, side)
    rows: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    with atomic_folder(folder) as content:
        for entry in entries(content, seeds, media_format, on_sample):
            rows[entry.split].append(_write_llava(content, entry))
        for split in SPLITS:
            if rows[split]:
                text = json.dumps(rows[split], indent=1) + "\n"
                (content / f"{split}.json").write_text(text, encoding="utf-8")
    return {split: len(rows[split]) for split in SPLITS}


def export_datasets(
    folder: Path,
    seeds: Seeds,
    *,
    frames: int = 96,
    rate: int = RATE,
    side: int = 256,
    on_sample: Progress | None = None,
) -> dict[str, int]:
    """Write a folder for ``datasets.load_dataset(str(folder))``.

    Pictures are inside Parquet files, and clips are paths. The arguments and the result are those
    of :func:`export_llava`.
    """
    media_format = MediaFormat(frames, rate, side)
    library = import_datasets()
    with atomic_folder(folder) as content:
        (content / "data").mkdir()
        writers = {split: _ShardWriter(library, content / "data", split) for split in SPLITS}
        for entry in entries(content, seeds, media_format, on_sample):
            writers[entry.split].add(_row(entry))
        counts = {split: writers[split].close() for split in SPLITS}
        (content / "README.md").write_text(_card(counts), encoding="utf-8")
    return counts


def _card(counts: dict[str, int]) -> str:
    files = [
        f"  - split: {split}\n    path: data/{split}-*.parquet"
        for split, count in counts.items()
        if count
    ]
    sizes = [f"{count} entries to {split}" for split, count in counts.items()]
    return _CARD.format(files="\n".join(files), counts=", ".join(sizes))


def _write_llava(folder: Path, entry: WorldEntry) -> dict[str, Any]:
    row: dict[str, Any] = {"id": entry.name}
    if entry.video:
        row["video"] = entry.video
    paths = _write_pictures(folder, entry)
    if len(paths) == 1:
        row["image"] = paths[0]
    elif paths:
        row["image"] = paths
    row["conversations"] = entry.conversations
    row["record"] = entry.record
    return row


def _write_pictures(folder: Path, entry: WorldEntry) -> list[str]:
    suffixes = ("-first", "-second") if len(entry.pictures) == 2 else ("",)
    paths = []
    for suffix, picture in zip(suffixes, entry.pictures, strict=False):
        (folder / "images").mkdir(exist_ok=True)
        path = f"images/{entry.name}{suffix}.png"
        (folder / path).write_bytes(png(picture))
        paths.append(path)
    return paths


def _row(entry: WorldEntry) -> dict[str, Any]:
    """One row of a data set.

    Facts are a list of names and values, because a column for each name is not possible.
    """
    record = entry.record
    facts = record.pop("facts")
    evidence = record.pop("evidence", [])
    return {
        "id": entry.name,
        "images": [{"bytes": png(picture), "path": None} for picture in entry.pictures],
        "video": entry.video,
        "conversations": entry.conversations,
        **record,
        "facts": [{"name": name, "value": value} for name, value in facts.items()],
        "evidence": evidence,
    }


class _ShardWriter:
    """Writes the Parquet files of one split, with SHARD rows each.

    The names of the files contain their number, so they are renamed at the end.
    """

    def __init__(self, library: Any, folder: Path, split: str) -> None:
        self._library = library
        self._folder = folder
        self._split = split
        self._rows: list[dict[str, Any]] = []
        self._files: list[Path] = []
        self._count = 0

    def add(self, row: dict[str, Any]) -> None:
        self._rows.append(row)
        self._count += 1
        if len(self._rows) == SHARD:
            self._write()

    def close(self) -> int:
        """Write the last rows and rename the files; returns the number of rows."""
        if self._rows:
            self._write()
        for number, file in enumerate(self._files):
            name = f"{self._split}-{number:05}-of-{len(self._files):05}.parquet"
            file.rename(self._folder / name)
        return self._count

    def _write(self) -> None:
        file = self._folder / f"{self._split}-{len(self._files)}.parquet"
        with without_progress_bars(self._library):
            dataset = self._library.Dataset.from_list(self._rows, features=_columns(self._library))
            dataset.to_parquet(str(file))
        self._files.append(file)
        self._rows = []


@contextmanager
def without_progress_bars(library: Any) -> Iterator[None]:
    were_enabled = not library.are_progress_bars_disabled()
    library.disable_progress_bars()
    try:
        yield
    finally:
        if were_enabled:
            library.enable_progress_bars()


def _columns(library: Any) -> Any:
    text = library.Value("string")
    number = library.Value("int64")
    return library.Features(
        {
            "id": text,
            "images": [library.Image()],
            "video": text,
            "conversations": [{"from": text, "value": text}],
            "kind": text,
            "seed": number,
            "split": text,
            "families": [text],
            "facts": [{"name": text, "value": text}],
            "evidence": [{"frames": [number], "cells": [[number]]}],
        }
    )


def import_datasets() -> Any:
    try:
        return import_module("datasets")
    except ModuleNotFoundError as error:
        raise ConfigError("this format needs the package datasets: pip install datasets") from error

"""The world as files to train and measure other models on: LLaVA's JSON, or a folder for Hugging
Face ``datasets``.

What is said is a sample's dialogue (``samples.py``); seeds from HELD_OUT on make the test split. A
folder appears when all of it is written, so an interrupted export leaves nothing that a reader
could take for a whole one.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens.world.entries import SPLITS, Entry, Look, Progress, Seeds, entries, seeds_of
from draftlens.world.files import RATE, png, whole_folder

__all__ = ["export_datasets", "export_llava", "seeds_of"]

SHARD = 500  # rows of a Parquet file

_CARD = """---
configs:
- config_name: default
  data_files:
{files}
---

# draftlens's procedural world

Clips and pictures of moving shapes and words, with dialogues of which every answer is the one right answer.
`datasets.load_dataset(FOLDER)` reads this folder; `video` is a path from the folder on.
{counts}. The test split shows combinations (of a colour with a shape, a motion or a word) that the training split
never shows. Made by `draftlens world`; docs/world.md of draftlens explains the columns.
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
    """Writes ``train.json`` and ``test.json`` in LLaVA's format, the media beside them.

    Args:
        folder: a new or an empty one.
        seeds: by kind, of ``samples.KINDS``; :func:`seeds_of` makes them.
        frames: of a clip; in fewer than eight, not all that is said can be seen.
        rate: frames a second.
        side: pixels a side of frames and pictures; even.
        on_sample: called after each sample.

    Returns:
        How many entries each split has; a split without any has no file.

    Raises:
        ConfigError: the folder is not empty, a kind or a size makes no sense, or seeds are negative
            or come twice.
    """
    look = Look(frames, rate, side)
    rows: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    with whole_folder(folder) as content:
        for entry in entries(content, seeds, look, on_sample):
            rows[entry.split].append(_llava(content, entry))
        for split in SPLITS:
            if rows[split]:
                (content / f"{split}.json").write_text(
                    json.dumps(rows[split], indent=1) + "\n", encoding="utf-8"
                )
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
    """Writes what ``datasets.load_dataset(str(folder))`` reads: pictures inside Parquet files,
    clips as paths.

    Arguments and result are those of :func:`export_llava`.

    Raises:
        ConfigError: as there; or ``datasets`` is not installed.
    """
    look, library = Look(frames, rate, side), _datasets()
    with whole_folder(folder) as content:
        (content / "data").mkdir()
        shards = {split: _Shards(library, content / "data", split) for split in SPLITS}
        for entry in entries(content, seeds, look, on_sample):
            shards[entry.split].add(_row(entry))
        counts = {split: shards[split].close() for split in SPLITS}
        files = [
            f"  - split: {split}\n    path: data/{split}-*.parquet"
            for split in SPLITS
            if counts[split]
        ]
        said = ", ".join(f"{counts[split]} entries to {split}" for split in SPLITS)
        card = _CARD.format(files="\n".join(files), counts=said)
        (content / "README.md").write_text(card, encoding="utf-8")
    return counts


def _llava(folder: Path, entry: Entry) -> dict[str, Any]:
    """One element of LLaVA's list; writes the entry's pictures."""
    which = ("-first", "-second") if len(entry.pictures) == 2 else ("",) * len(entry.pictures)
    paths = [f"images/{entry.name}{suffix}.png" for suffix in which]
    for path, picture in zip(paths, entry.pictures, strict=True):
        (folder / "images").mkdir(exist_ok=True)
        (folder / path).write_bytes(png(picture))
    media: dict[str, Any] = {"image": paths[0] if len(paths) == 1 else paths} if paths else {}
    if entry.video:
        media = {"video": entry.video}
    return {"id": entry.name, **media, "conversations": entry.conversations, "record": entry.record}


def _row(entry: Entry) -> dict[str, Any]:
    """One row of a data set; its facts are a list, because columns cannot have a name for each."""
    record = entry.record
    known = [{"name": name, "value": value} for name, value in record.pop("facts").items()]
    images = [{"bytes": png(picture), "path": None} for picture in entry.pictures]
    shown = {"images": images, "video": entry.video}
    return {
        "id": entry.name,
        **shown,
        "conversations": entry.conversations,
        **record,
        "facts": known,
    }


class _Shards:
    """Parquet files of one split, SHARD rows each, numbered when their number is known."""

    def __init__(self, library: Any, folder: Path, split: str) -> None:
        self.library, self.folder, self.split = library, folder, split
        self.rows: list[dict[str, Any]] = []
        self.files: list[Path] = []
        self.count = 0

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.count += 1
        if len(self.rows) == SHARD:
            self._write()

    def close(self) -> int:
        """Writes what is left and gives the files their names; returns the number of rows."""
        if self.rows:
            self._write()
        for number, file in enumerate(self.files):
            file.rename(self.folder / f"{self.split}-{number:05}-of-{len(self.files):05}.parquet")
        return self.count

    def _write(self) -> None:
        file = self.folder / f"{self.split}-{len(self.files)}.parquet"
        with _without_bars(self.library):
            self.library.Dataset.from_list(self.rows, features=_columns(self.library)).to_parquet(
                str(file)
            )
        self.files.append(file)
        self.rows = []


@contextmanager
def _without_bars(library: Any) -> Iterator[None]:
    shown = not library.are_progress_bars_disabled()
    library.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            library.enable_progress_bars()


def _columns(library: Any) -> Any:
    text = library.Value("string")
    return library.Features(
        {
            "id": text,
            "images": [library.Image()],
            "video": text,
            "conversations": [{"from": text, "value": text}],
            "kind": text,
            "seed": library.Value("int64"),
            "split": text,
            "families": [text],
            "facts": [{"name": text, "value": text}],
        }
    )


def _datasets() -> Any:
    try:
        return import_module("datasets")
    except ModuleNotFoundError as error:
        raise ConfigError(
            'this format needs the package datasets; pip install "draftlens[train]"'
        ) from error

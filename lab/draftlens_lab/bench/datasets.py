"""Published benchmarks: rows by Hugging Face `datasets`, videos from a folder on disk.

Only media and questions are used; answers are not graded. Columns are those of the dataset cards
that each function names, as of 2025. Only annotations are downloaded: the videos must be on disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens_lab.bench.clips import (
    VIDEO_SUFFIXES,
    Clip,
    FrameFolder,
    Media,
    VideoFile,
    select_clips,
    unique_names,
)
from draftlens_lab.bench.workloads import WorkloadRequest

Row = Mapping[str, Any]

FORMATS = {".json": "json", ".jsonl": "json", ".parquet": "parquet"}
"""Suffix of a file of annotations to its format."""

LETTERS = "ABCDEFGHIJ"
INSTRUCTION = "Answer with the option's letter from the given choices directly."

MVBENCH = {
    "action_sequence": "star",
    "action_prediction": "star",
    "object_interaction": "star",
    "action_localization": "sta",
    "action_antonym": "ssv2_video",
    "fine_grained_action": "Moments_in_Time_Raw",
    "unexpected_action": "FunQA_test",
    "scene_transition": "scene_qa",
    "fine_grained_pose": "nturgbd",
    "egocentric_navigation": "vlnqa",
    "episodic_reasoning": "tvqa",
    "action_count": "perception",
    "character_order": "perception",
    "object_shuffle": "perception",
    "state_change": "perception",
    "counterfactual_inference": "clevrer",
    "moving_attribute": "clevrer",
    "moving_count": "clevrer",
    "moving_direction": "clevrer",
    "object_existence": "clevrer",
}
"""Task of MVBench to the folder of its videos, since file names are not unique across folders."""

TVQA_RATE = 3.0
"""Frames per second of MVBench's folders of pictures."""


@dataclass(frozen=True)
class VideoRow:
    """A row of annotations in a common form.

    Args:
        frame_rate: frames per second of a folder of frames.
    """

    name: str
    video: str
    prompt: str
    folder: str = ""
    frame_rate: float = 1.0


def video_detail_caption(request: WorkloadRequest) -> list[Clip]:
    """Clips of https://huggingface.co/datasets/lmms-lab/VideoDetailCaption.

    Columns: `video_name` without suffix, `question`.
    """
    rows = dataset_rows(request.source or "lmms-lab/VideoDetailCaption", "test")
    entries = (VideoRow(row["video_name"], row["video_name"], row["question"]) for _, row in rows)
    return _clips(request, entries)


def mvbench(request: WorkloadRequest) -> list[Clip]:
    """Clips of https://huggingface.co/datasets/OpenGVLab/MVBench.

    A file per task with the columns `video`, `question`, `candidates`. The whole video is shown,
    also where the row has a `start` and an `end`.
    """

    def entry(task: str, row: Row) -> VideoRow:
        name = f"{task}/{row['video']}"
        prompt = multiple_choice(row["question"], row["candidates"])
        return VideoRow(name, row["video"], prompt, MVBENCH.get(task, ""), TVQA_RATE)

    rows = dataset_rows(request.source or "OpenGVLab/MVBench", "train", all_configurations=True)
    return _clips(request, (entry(task, row) for task, row in rows))


def mlvu(request: WorkloadRequest) -> list[Clip]:
    """Clips of https://huggingface.co/datasets/MLVU/MVLU.

    Columns of json/1_plotQA.json and the other tasks: `video`, `question`, `candidates`. In the
    Parquet copies for lmms-eval (sy1998/MLVU_dev) the first is `video_name`, and in some of them
    the question includes the candidates. Open questions (summary, sub_scene) have no candidates.
    """

    def entry(task: str, row: Row) -> VideoRow:
        video = row.get("video") or row["video_name"]
        prompt = multiple_choice(row["question"], row.get("candidates") or ())
        return VideoRow(f"{task}/{video}", video, prompt, task)

    rows = dataset_rows(request.source or "sy1998/MLVU_dev", "test")
    return _clips(request, (entry(task, row) for task, row in rows))


def long_video_bench(request: WorkloadRequest) -> list[Clip]:
    """Clips of https://huggingface.co/datasets/longvideobench/LongVideoBench.

    Columns: `id`, `video_path`, `question`, and either `candidates` (lvb_val.json) or `option0` to
    `option4` (Parquet), where "N/A" fills missing options.
    """

    def entry(row: Row) -> VideoRow:
        options = [row.get(f"option{number}") for number in range(5)]
        valid_options = [option for option in options if option not in (None, "N/A")]
        prompt = multiple_choice(row["question"], row.get("candidates") or valid_options)
        return VideoRow(row["id"], row["video_path"], prompt)

    rows = dataset_rows(request.source or "longvideobench/LongVideoBench", "validation")
    return _clips(request, (entry(row) for _, row in rows))


def video_mme(request: WorkloadRequest) -> list[Clip]:
    """Clips of https://huggingface.co/datasets/lmms-lab/Video-MME.

    Columns: `videoID`, `question_id`, `question`, and `options` that begin with their letters.
    """

    def entry(row: Row) -> VideoRow:
        prompt = "\n".join([row["question"], *row["options"], INSTRUCTION])
        return VideoRow(row["question_id"], row["videoID"], prompt)

    rows = dataset_rows(request.source or "lmms-lab/Video-MME", "test")
    return _clips(request, (entry(row) for _, row in rows))


def multiple_choice(question: str, choices: Sequence[str]) -> str:
    """The question with lettered choices and the instruction to answer with a letter; the question
    alone if there are no choices."""
    if not choices:
        return question
    lettered = [f"({letter}) {text}" for letter, text in zip(LETTERS, choices, strict=False)]
    return "\n".join([question, *lettered, INSTRUCTION])


def dataset_rows(
    source: str, split: str, all_configurations: bool = False, configuration: str | None = None
) -> Iterator[tuple[str, Row]]:
    """Load the rows of a dataset. Pictures stay encoded: a dictionary with `bytes` and `path`.

    Args:
        all_configurations: whether to load all configurations of a dataset on the Hub instead of
            the first.
        configuration: the configuration of a dataset on the Hub; None for the first.

    Yields:
        Each row with the name of its file or configuration.
    """
    if find_spec("datasets") is None:
        raise ConfigError("benchmarks are read with the package datasets: pip install datasets")
    import datasets  # type: ignore[import-untyped]

    datasets.disable_progress_bars()
    files = _annotations(Path(source), split) if Path(source).exists() else []
    try:
        if files:
            yield from _rows_of_files(files)
        else:
            yield from _rows_on_hub(source, split, all_configurations, configuration)
    except (OSError, ValueError, datasets.exceptions.DatasetGenerationError) as error:
        raise ConfigError(
            f"cannot load the annotations {source!r}: {' '.join(str(error).split())}"
        ) from error


def _rows_of_files(files: Iterable[Path]) -> Iterator[tuple[str, Row]]:
    from datasets import load_dataset

    for file in files:
        rows = load_dataset(FORMATS[file.suffix], data_files=str(file), split="train")
        for row in _with_encoded_pictures(rows):
            yield file.stem, row


def _rows_on_hub(
    name: str, split: str, all_configurations: bool, configuration: str | None
) -> Iterator[tuple[str, Row]]:
    from datasets import get_dataset_config_names, load_dataset

    if configuration is not None:
        configurations = [configuration]
    else:
        configurations = list(get_dataset_config_names(name))
        if not all_configurations:
            configurations = configurations[:1]
    for chosen in configurations:
        for row in _with_encoded_pictures(load_dataset(name, chosen, split=split)):
            yield chosen, row


def _with_encoded_pictures(rows: Any) -> Any:
    """The rows without decoding their pictures, since few of them may be needed."""
    from datasets import Image

    for name, feature in rows.features.items():
        if isinstance(feature, Image):
            rows = rows.cast_column(name, Image(decode=False))
    return rows


def _annotations(path: Path, split: str) -> list[Path]:
    """The files of annotations at a path: the file itself, or those of the folder or of its `json`,
    `data` or `videomme` folder.

    If some files are named after the split, only these are used. If there are JSON and Parquet
    files, which hold the same rows, the JSON files are used.
    """
    if path.is_file():
        if path.suffix not in FORMATS:
            raise ConfigError(f"{path} is not annotations (.json, .jsonl or .parquet)")
        return [path]
    for folder in (path / "json", path / "data", path / "videomme", path):
        files = sorted(f for f in folder.glob("*") if f.suffix in FORMATS and f.is_file())
        if files:
            split_name = split.removesuffix("idation")  # some files say "val"
            files = [file for file in files if split_name in file.stem] or files
            preferred = min(FORMATS[file.suffix] for file in files)
            return [file for file in files if FORMATS[file.suffix] == preferred]
    raise ConfigError(f"{path} holds no annotations (.json, .jsonl or .parquet)")


def _clips(request: WorkloadRequest, rows: Iterable[VideoRow]) -> list[Clip]:
    options = request.options
    dataset = options.workload.partition(":")[0]
    finder = Finder(media_root(request))
    try:
        entries = list(rows)
    except KeyError as error:
        raise ConfigError(
            f"{request.source!r} is not in the format of {dataset}: it has no column {error}"
        ) from error
    if not entries:
        raise ConfigError(f"{request.source!r} holds no rows")
    clips = []
    for name, entry in zip(unique_names(e.name for e in entries), entries, strict=True):
        prompt = options.prompt or entry.prompt
        clips.append(Clip(name, prompt, finder.find(entry), options.frames, dataset))
    return select_clips(clips, options.clips)


def media_root(request: WorkloadRequest, kind: str = "videos") -> Path:
    """The folder of a dataset's videos or pictures."""
    root = request.options.media
    if root is not None:
        if not root.is_dir():
            raise ConfigError(f"the folder of {kind} {root} does not exist")
        return root
    annotations = Path(request.source)
    if not request.source or not annotations.exists():
        raise ConfigError(
            f"{request.options.workload} needs --media: the folder that holds its {kind}"
        )
    return annotations if annotations.is_dir() else annotations.parent


@dataclass(frozen=True)
class Finder:
    """Finds videos at any depth of a folder, since unpacked archives nest them differently."""

    root: Path

    def find(self, entry: VideoRow) -> Media:
        """The video of an entry. A missing video raises an error only when it is read."""
        name = entry.video.rstrip("/")
        path = self.root / name
        if not path.exists():
            candidates = self._candidates(name)
            if candidates:
                in_folder = [file for file in candidates if self._lies_in(file, entry.folder)]
                path = (in_folder or candidates)[0]
        return FrameFolder(path, entry.frame_rate) if path.is_dir() else VideoFile(path)

    def _lies_in(self, path: Path, folder: str) -> bool:
        return folder in path.relative_to(self.root).parts

    def _candidates(self, name: str) -> list[Path]:
        file_name = name.rsplit("/", 1)[-1]
        paths = self._index.get(file_name) or self._index.get(f"{file_name}.*") or []
        matches = []
        for path in paths:
            relative = path.relative_to(self.root).as_posix()
            if f"/{relative}".endswith(f"/{name}"):
                matches.append(path)
        return matches or paths

    @cached_property
    def _index(self) -> dict[str, list[Path]]:
        """Paths by name: videos under their names and under their names with the suffix ``.*``,
        folders under their names."""
        index: dict[str, list[Path]] = {}
        for top, folders, files in os.walk(self.root):
            folders.sort()  # in place: the order in which os.walk visits them
            for name in [*sorted(files), *folders]:
                path = Path(top, name)
                is_video = path.suffix.lower() in VIDEO_SUFFIXES
                if is_video:
                    index.setdefault(f"{path.stem}.*", []).append(path)
                if is_video or name in folders:
                    index.setdefault(name, []).append(path)
        return index

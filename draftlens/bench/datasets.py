"""Published benchmarks: rows by Hugging Face `datasets`, videos from a folder on disk.

Only what is shown and asked is taken; answers are not marked here. Columns are those of the dataset
cards that each function names, as of 2025. Nothing but annotations is ever downloaded: the videos
must be there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from draftlens.bench.clips import FILMS, Clip, FrameFolder, Media, VideoFile, spread, unlike
from draftlens.bench.workloads import Wanted
from draftlens.core.errors import ConfigError

Row = Mapping[str, Any]
KINDS = {".json": "json", ".jsonl": "json", ".parquet": "parquet"}
LETTERS = "ABCDEFGHIJ"
BEST = "Answer with the option's letter from the given choices directly."

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
"""MVBench's tasks to the folder that its videos lie in: names of files are not unlike across
folders."""
TVQA_RATE = 3.0  # frames a second of MVBench's folders of pictures


@dataclass(frozen=True)
class Entry:
    """What one row says.

    Args:
        name: of the clip.
        video: name of its file, perhaps without suffix, or of its folder of frames.
        prompt: what is asked.
        folder: above it, tells files of one name apart.
        frame_rate: of a folder of frames.
    """

    name: str
    video: str
    prompt: str
    folder: str = ""
    frame_rate: float = 1.0


def video_detail_caption(wanted: Wanted) -> list[Clip]:
    """https://huggingface.co/datasets/lmms-lab/VideoDetailCaption: `video_name` without suffix,
    `question`."""
    rows = rows_of(wanted.where or "lmms-lab/VideoDetailCaption", "test")
    return _clips(
        wanted, (Entry(row["video_name"], row["video_name"], row["question"]) for _, row in rows)
    )


def mvbench(wanted: Wanted) -> list[Clip]:
    """https://huggingface.co/datasets/OpenGVLab/MVBench: a file a task with `video`, `question`,
    `candidates`.

    The whole video is shown, also where the row has a `start` and an `end`.
    """

    def entry(task: str, row: Row) -> Entry:
        prompt = choice(row["question"], row["candidates"])
        return Entry(
            f"{task}/{row['video']}", row["video"], prompt, MVBENCH.get(task, ""), TVQA_RATE
        )

    rows = rows_of(wanted.where or "OpenGVLab/MVBench", "train", configurations=True)
    return _clips(wanted, (entry(task, row) for task, row in rows))


def mlvu(wanted: Wanted) -> list[Clip]:
    """https://huggingface.co/datasets/MLVU/MVLU: `video`, `question`, `candidates` in
    json/1_plotQA.json and so on.

    The copies in Parquet for lmms-eval (sy1998/MLVU_dev) call it `video_name`, and some write the
    candidates into the question. Open questions (summary, sub_scene) have no candidates.
    """

    def entry(task: str, row: Row) -> Entry:
        video = row.get("video") or row["video_name"]
        return Entry(
            f"{task}/{video}", video, choice(row["question"], row.get("candidates") or ()), task
        )

    rows = rows_of(wanted.where or "sy1998/MLVU_dev", "test")
    return _clips(wanted, (entry(task, row) for task, row in rows))


def long_video_bench(wanted: Wanted) -> list[Clip]:
    """https://huggingface.co/datasets/longvideobench/LongVideoBench: `id`, `video_path`,
    `question`, and choices.

    Choices are `candidates` in lvb_val.json, and `option0` to `option4` ("N/A" where there are
    fewer) in Parquet.
    """

    def entry(row: Row) -> Entry:
        options = [row.get(f"option{i}") for i in range(5)]
        choices = row.get("candidates") or [
            option for option in options if option not in (None, "N/A")
        ]
        return Entry(row["id"], row["video_path"], choice(row["question"], choices))

    rows = rows_of(wanted.where or "longvideobench/LongVideoBench", "validation")
    return _clips(wanted, (entry(row) for _, row in rows))


def video_mme(wanted: Wanted) -> list[Clip]:
    """https://huggingface.co/datasets/lmms-lab/Video-MME: `videoID`, `question_id`, `question`,
    lettered `options`."""

    def entry(row: Row) -> Entry:
        return Entry(
            row["question_id"], row["videoID"], "\n".join([row["question"], *row["options"], BEST])
        )

    rows = rows_of(wanted.where or "lmms-lab/Video-MME", "test")
    return _clips(wanted, (entry(row) for _, row in rows))


def choice(question: str, choices: Sequence[str]) -> str:
    """The question with lettered choices; as it is where there are none."""
    if not choices:
        return question
    lettered = [f"({letter}) {text}" for letter, text in zip(LETTERS, choices, strict=False)]
    return "\n".join([question, *lettered, BEST])


def rows_of(where: str, split: str, configurations: bool = False) -> Iterator[tuple[str, Row]]:
    """Rows with the name of their file or configuration.

    Args:
        where: annotations (JSON, JSON lines or Parquet), a folder that holds some, or a dataset on
            the Hub.
        split: of a dataset on the Hub.
        configurations: whether all of its configurations are wanted, and not only its first.

    Raises:
        ConfigError: nothing can be loaded, or the package is missing.
    """
    if find_spec("datasets") is None:
        raise ConfigError(
            'benchmarks are read with the package datasets: pip install "draftlens[bench]"'
        )
    import datasets  # type: ignore[import-untyped]

    datasets.disable_progress_bars()
    files = _annotations(Path(where), split) if Path(where).exists() else []
    try:
        if files:
            for file in files:
                for row in datasets.load_dataset(
                    KINDS[file.suffix], data_files=str(file), split="train"
                ):
                    yield file.stem, row
        else:
            names = datasets.get_dataset_config_names(where)
            for name in names if configurations else names[:1]:
                for row in datasets.load_dataset(where, name, split=split):
                    yield name, row
    except (OSError, ValueError, datasets.exceptions.DatasetGenerationError) as error:
        raise ConfigError(
            f"cannot load the annotations {where!r}: {' '.join(str(error).split())}"
        ) from error


def _annotations(path: Path, split: str) -> list[Path]:
    """The files that hold rows: this one, or those of this folder or of its `json`, `data` or
    `videomme` folder.

    Where files are named after splits, those of another are left out; where the same rows are there
    as JSON and as Parquet, the JSON is taken.
    """
    if path.is_file():
        if path.suffix not in KINDS:
            raise ConfigError(f"{path} is not annotations (.json, .jsonl or .parquet)")
        return [path]
    for folder in (path / "json", path / "data", path / "videomme", path):
        files = sorted(file for file in folder.glob("*") if file.suffix in KINDS and file.is_file())
        files = [file for file in files if split.removesuffix("idation") in file.stem] or files
        if files:
            return [
                file for file in files if KINDS[file.suffix] == min(KINDS[f.suffix] for f in files)
            ]
    raise ConfigError(f"{path} holds no annotations (.json, .jsonl or .parquet)")


def _clips(wanted: Wanted, entries: Iterable[Entry]) -> list[Clip]:
    options = wanted.options
    name = options.workload.partition(":")[0]
    finder = Finder(_media_root(wanted))
    try:
        found = list(entries)
    except KeyError as error:
        raise ConfigError(
            f"{wanted.where!r} is not in the format of {name}: it has no column {error}"
        ) from error
    clips = [
        Clip(label, options.prompt or entry.prompt, finder.find(entry), options.frames, name)
        for label, entry in zip(unlike(entry.name for entry in found), found, strict=True)
    ]
    if not clips:
        raise ConfigError(f"{wanted.where!r} holds no rows")
    return spread(clips, options.clips)


def _media_root(wanted: Wanted) -> Path:
    root = wanted.options.media
    if root is not None:
        if not root.is_dir():
            raise ConfigError(f"the folder of videos {root} does not exist")
        return root
    beside = Path(wanted.where)
    if not wanted.where or not beside.exists():
        raise ConfigError(
            f"{wanted.options.workload} needs --media: the folder that holds its videos"
        )
    return beside if beside.is_dir() else beside.parent


@dataclass(frozen=True)
class Finder:
    """Finds videos under a folder, however deep: unpacked archives nest them differently."""

    root: Path

    def find(self, entry: Entry) -> Media:
        """The video of an entry; one that is not there is refused when it is to be read."""
        wanted = entry.video.rstrip("/")
        exact = self.root / wanted
        paths = [] if exact.exists() else self._candidates(wanted)
        here = [path for path in paths if entry.folder in path.relative_to(self.root).parts]
        path = next(iter(here or paths), exact)
        return FrameFolder(path, entry.frame_rate) if path.is_dir() else VideoFile(path)

    def _candidates(self, wanted: str) -> list[Path]:
        name = wanted.rsplit("/", 1)[-1]
        paths = self._index.get(name) or self._index.get(f"{name}.*") or []
        deep = [
            path
            for path in paths
            if f"/{path.relative_to(self.root).as_posix()}".endswith(f"/{wanted}")
        ]
        return deep or paths

    @cached_property
    def _index(self) -> dict[str, list[Path]]:
        """Names of films (with their suffix, and with ``.*`` instead) and of folders, to their
        paths."""
        index: dict[str, list[Path]] = {}
        for top, folders, files in os.walk(self.root):
            folders.sort()
            found = [Path(top, name) for name in [*sorted(files), *folders]]
            for path in found:
                if path.suffix.lower() in FILMS:
                    index.setdefault(f"{path.stem}.*", []).append(path)
                elif path.name not in folders:
                    continue
                index.setdefault(path.name, []).append(path)
        return index

"""The sets of TABED's evaluation as workloads: questions about pictures, and text.

Rows are read with Hugging Face `datasets` from local files or from the Hub; pictures are in the
rows or in a folder. Columns are those of the dataset cards that each function names, prompts those
of the paper's appendix I.1. Answers are not graded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from draftlens.core.errors import ConfigError, MediaError
from draftlens.media.conversation import read
from draftlens_lab.bench.clips import IMAGE_SUFFIXES, Clip, Reader, select_clips, unique_names
from draftlens_lab.bench.datasets import Row, dataset_rows, media_root
from draftlens_lab.bench.workloads import WorkloadRequest

PLACE = "<image>"
"""Where a picture is in a prompt."""

REASONING = (
    "For the following question, provide a detailed explanation of your reasoning leading to the "
    "answer."
)
EDIT = (
    "Please provide instructions for editing the source image to match the target image. "
    f"Source Image: {PLACE} Target Image: {PLACE} Instruction:"
)
SPOT = f"Explain the disparities between the first and second image. {PLACE} {PLACE} Difference:"
PORORO = (
    "Given the progression of the story with the first few images, can you write a fitting end "
    "considering the last image?"
)
VIST = (
    "With the narratives paired with the initial images, how would you conclude the story using "
    "the last picture?"
)

INTERLEAVE = "lmms-lab/LLaVA-NeXT-Interleave-Bench"
MOST_PICTURES = 16
"""Number of the picture columns of `INTERLEAVE` that are read."""


@dataclass(frozen=True)
class PictureRow:
    """A row in a common form."""

    name: str
    prompt: str
    pictures: tuple[bytes | str, ...] = ()
    before: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Dialogue:
    """A prompt with pictures between its words."""

    pictures: tuple[bytes | Path, ...]
    before: tuple[tuple[str, str], ...] = ()

    def prepare(self, prompt: str, frames: int) -> Reader:
        """See `Media.prepare`. Pictures without a `PLACE` are before the first question."""
        questions = [question for question, _ in self.before] + [prompt]
        answers = [answer for _, answer in self.before]
        texts = placed(questions, len(self.pictures))

        def read_pictures() -> Any:
            pictures = [_opened(picture) for picture in self.pictures]
            return read(_messages(texts, answers, pictures), frames)

        return read_pictures

    def files(self) -> Sequence[Path]:
        return [picture for picture in self.pictures if isinstance(picture, Path)]


@dataclass(frozen=True)
class Pictures:
    """Finds pictures at any depth of a folder."""

    root: Path

    def find(self, name: str) -> Path:
        """The picture of a name, which may lack the suffix. A missing one raises an error only when
        it is read."""
        path = self.root / name
        if path.is_file():
            return path
        file_name = Path(name).name
        return self._index.get(file_name, path)

    @cached_property
    def _index(self) -> dict[str, Path]:
        """Paths by name, with and without the suffix; of several the first in order."""
        index: dict[str, Path] = {}
        for path in sorted(self.root.rglob("*")):
            if path.suffix.lower() in IMAGE_SUFFIXES:
                index.setdefault(path.name, path)
                index.setdefault(path.stem, path)
        return index


@dataclass(frozen=True)
class _Source:
    """Where the rows of a set are on the Hub.

    Args:
        configuration: its configuration; None for the first.
    """

    name: str
    split: str
    configuration: str | None = None


@dataclass(frozen=True)
class _Set:
    """A set of the paper.

    Args:
        source: where its rows are unless the request names another place.
        entry: makes an entry of a row, given its number; None leaves the row out.
    """

    source: _Source
    entry: Callable[[Row, int], PictureRow | None] = field(repr=False)


def llava_w(request: WorkloadRequest) -> list[Clip]:
    """LLaVA-Bench (In-the-Wild), https://huggingface.co/datasets/lmms-lab/llava-bench-in-the-wild.

    Columns: `question_id`, `question`, `image`.
    """
    source = _Source("lmms-lab/llava-bench-in-the-wild", "train")
    return _clips(request, _Set(source, _reasoning_entry))


def doc_vqa(request: WorkloadRequest) -> list[Clip]:
    """DocVQA, the configuration `docvqa_val` of
    https://huggingface.co/datasets/lmms-lab/LMMs-Eval-Lite.

    Columns: `questionId`, `question`, `image`.
    """
    source = _Source("lmms-lab/LMMs-Eval-Lite", "lite", "docvqa_val")
    return _clips(request, _Set(source, _reasoning_entry))


def pope(request: WorkloadRequest) -> list[Clip]:
    """POPE, https://huggingface.co/datasets/lmms-lab/POPE.

    Columns: `question_id`, `question`, `image`.
    """
    return _clips(request, _Set(_Source("lmms-lab/POPE", "test"), _reasoning_entry))


def mm_vet(request: WorkloadRequest) -> list[Clip]:
    """MM-Vet, https://huggingface.co/datasets/lmms-lab/MMVet.

    Columns: `question_id`, `question`, `image`.
    """
    return _clips(request, _Set(_Source("lmms-lab/MMVet", "test"), _reasoning_entry))


def i_edit(request: WorkloadRequest) -> list[Clip]:
    """IEdit, see `_interleaved`. The prompt is the paper's."""
    return _interleaved(request, "IEdit", lambda question: EDIT)


def magic_brush(request: WorkloadRequest) -> list[Clip]:
    """MagicBrush, see `_interleaved`. The prompt is the paper's."""
    return _interleaved(request, "MagicBrush", lambda question: EDIT)


def spot_the_difference(request: WorkloadRequest) -> list[Clip]:
    """Spot the Difference, see `_interleaved`. The prompt is the paper's."""
    return _interleaved(request, "Spot-the-Diff", lambda question: SPOT)


def pororo(request: WorkloadRequest) -> list[Clip]:
    """PororoSV, see `_interleaved`. The instruction is the paper's, the captions are the row's."""
    return _interleaved(request, "PororoSV", lambda question: _instructed(PORORO, question))


def vist(request: WorkloadRequest) -> list[Clip]:
    """VIST, see `_interleaved`. The instruction is the paper's, the captions are the row's."""
    return _interleaved(request, "VIST", lambda question: _instructed(VIST, question))


def conv_bench(request: WorkloadRequest) -> list[Clip]:
    """The second turns of ConvBench, https://github.com/shirlyliu64/ConvBench.

    Its table, ConvBench.xlsx, must be converted to JSON lines or Parquet. Columns: `ID`, `image_id`
    (the name of a picture in the folder of pictures), `The_first_turn_instruction`,
    `first_turn_answer` (a person's, which is given as the first answer) and
    `The_second_turn_instruction`.
    """

    def entry(row: Row, number: int) -> PictureRow:
        first = (row["The_first_turn_instruction"], row["first_turn_answer"])
        name = str(row.get("ID", number))
        return PictureRow(
            name, row["The_second_turn_instruction"], _encoded(row["image_id"]), (first,)
        )

    if not request.source:
        raise ConfigError(
            "convbench is not on the Hub: convert ConvBench.xlsx to JSON lines and name the file, "
            "as in convbench:ConvBench.jsonl"
        )
    return _clips(request, _Set(_Source("", "test"), entry))


def natural_questions(request: WorkloadRequest) -> list[Clip]:
    """NQ, https://huggingface.co/datasets/google-research-datasets/nq_open: text only.

    Column: `question`.
    """
    source = _Source("google-research-datasets/nq_open", "validation")
    return _clips(request, _Set(source, _text_entry))


def gsm8k(request: WorkloadRequest) -> list[Clip]:
    """GSM8K, https://huggingface.co/datasets/openai/gsm8k: text only.

    Column: `question`.
    """
    return _clips(request, _Set(_Source("openai/gsm8k", "test", "main"), _text_entry))


def placed(texts: Sequence[str], num_pictures: int) -> list[str]:
    """Questions of which each picture has its place.

    Args:
        num_pictures: number of pictures. Those without a `PLACE` are put before the first question.
    """
    missing = num_pictures - sum(text.count(PLACE) for text in texts)
    if missing < 0:
        raise ConfigError(
            f"the prompt {texts[-1]!r:.80} has places for more than {num_pictures} pictures"
        )
    return [f"{PLACE} " * missing + texts[0], *texts[1:]]


def _interleaved(request: WorkloadRequest, task: str, prompt: Callable[[str], str]) -> list[Clip]:
    """The rows of one task of `INTERLEAVE`, configuration `in_domain`.

    Columns: `sample_id`, `sub_task`, `question`, and `image_0` and so on, of which those that a row
    does not need are empty.

    Args:
        task: value of `sub_task`; a file without this column holds the task alone.
    """

    def entry(row: Row, number: int) -> PictureRow | None:
        if row.get("sub_task", task) != task:
            return None
        columns = [f"image_{index}" for index in range(MOST_PICTURES)]
        shown = [row[name] for name in columns if row.get(name) is not None]
        name = str(row.get("sample_id", number))
        return PictureRow(name, prompt(row["question"]), tuple(_encoded(*shown)))

    return _clips(request, _Set(_Source(INTERLEAVE, "test", "in_domain"), entry))


def _instructed(instruction: str, question: str) -> str:
    start = question.find(PLACE)
    if start < 0:
        return f"{instruction} {question}"
    return f"{instruction} {question[start:]}"


def _reasoning_entry(row: Row, number: int) -> PictureRow:
    identity = row.get("question_id", row.get("questionId", number))
    prompt = f"{PLACE} {REASONING} {row['question']}"
    return PictureRow(str(identity), prompt, _encoded(row["image"]))


def _text_entry(row: Row, number: int) -> PictureRow:
    return PictureRow(str(number), row["question"])


def _encoded(*values: Any) -> tuple[bytes | str, ...]:
    """Pictures of a row as encoded files or names of files.

    Args:
        values: names, or the dictionaries of `datasets` with `bytes` and `path`.
    """
    pictures: list[bytes | str] = []
    for value in values:
        if isinstance(value, str):
            pictures.append(value)
        else:
            pictures.append(value["bytes"] or str(value["path"]))
    return tuple(pictures)


def _clips(request: WorkloadRequest, chosen: _Set) -> list[Clip]:
    options = request.options
    dataset = options.workload.partition(":")[0]
    entries = _entries(request, chosen)
    folder: Pictures | None = None
    clips = []
    for name, entry in zip(unique_names(e.name for e in entries), entries, strict=True):
        pictures: list[bytes | Path] = []
        for picture in entry.pictures:
            if isinstance(picture, str):
                folder = folder or Pictures(media_root(request, "pictures"))
                pictures.append(folder.find(picture))
            else:
                pictures.append(picture)
        prompt = options.prompt or entry.prompt
        media = Dialogue(tuple(pictures), entry.before)
        clips.append(Clip(name, prompt, media, options.frames, dataset))
    return select_clips(clips, options.clips)


def _entries(request: WorkloadRequest, chosen: _Set) -> list[PictureRow]:
    source = chosen.source
    place = request.source or source.name
    entries = []
    try:
        rows = dataset_rows(place, source.split, configuration=source.configuration)
        for number, (_, row) in enumerate(rows):
            entry = chosen.entry(row, number)
            if entry is not None:
                entries.append(entry)
    except KeyError as error:
        dataset = request.options.workload.partition(":")[0]
        raise ConfigError(
            f"{place!r} is not in the format of {dataset}: it has no column {error}"
        ) from error
    if not entries:
        raise ConfigError(f"{place!r} holds no rows")
    return entries


def _messages(
    texts: Iterable[str], answers: Iterable[str], pictures: Sequence[Any]
) -> list[dict[str, Any]]:
    """The chat up to the last question.

    Args:
        answers: the answers to all but the last.
    """
    remaining = list(pictures)
    messages: list[dict[str, Any]] = []
    rest = list(answers)
    for text in texts:
        content: list[dict[str, Any]] = []
        for piece in re.split(f"({PLACE})", text):
            if piece == PLACE:
                content.append({"type": "image", "image": remaining.pop(0)})
            elif piece.strip():
                content.append({"type": "text", "text": piece.strip()})
        messages.append({"role": "user", "content": content})
        if rest:
            reply = [{"type": "text", "text": rest.pop(0)}]
            messages.append({"role": "assistant", "content": reply})
    return messages


def _opened(picture: bytes | Path) -> Any:
    if isinstance(picture, Path):
        return picture
    try:
        return Image.open(BytesIO(picture))
    except OSError as error:
        raise MediaError(f"cannot read a picture of the set: {error}") from error

"""The sets of TABED's evaluation, tiny and on disk, in their published formats."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from draftlens_lab.bench.clips import Clip
from draftlens_lab.bench.picture_sets import EDIT, PLACE, PORORO, REASONING, SPOT, VIST, placed
from PIL import Image

from draftlens.core.errors import ConfigError, MediaError
from tests.unit.lab.bench.fakes import clips

pytestmark = pytest.mark.usefixtures("own_cache")


def picture(shade: int) -> Image.Image:
    return Image.fromarray(np.full((4, 6, 3), shade, dtype=np.uint8))


def encoded(shade: int) -> dict[str, Any]:
    file = BytesIO()
    picture(shade).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def parquet(path: Path, rows: list[dict[str, Any]], pictures: tuple[str, ...] = ()) -> Path:
    """Rows as the Hub stores them: the columns of pictures are of the type of pictures."""
    table = datasets.Dataset.from_list(rows)
    for name in pictures:
        table = table.cast_column(name, datasets.Image())
    table.to_parquet(path)
    return path


def shades(clip: Clip) -> list[int]:
    return [int(np.asarray(image)[0, 0, 0]) for image in clip.prepare()().images]


def said(clip: Clip) -> list[Any]:
    """The words of each message, with `PLACE` for pictures."""
    messages = clip.prepare()().messages
    return [
        [item["text"] if item["type"] == "text" else PLACE for item in message["content"]]
        for message in messages
    ]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("llavaw", "question_id"),
        ("docvqa", "questionId"),
        ("pope", "question_id"),
        ("mmvet", "question_id"),
    ],
)
def test_questions_about_one_picture(tmp_path: Path, name: str, key: str) -> None:
    rows = [
        {key: f"q{number}", "question": f"What of {number}?", "image": encoded(20 * number)}
        for number in (1, 2)
    ]
    file = parquet(tmp_path / "rows.parquet", rows, ("image",))
    found = clips(f"{name}:{file}")
    assert [clip.name for clip in found] == ["q1", "q2"]
    assert [shades(clip) for clip in found] == [[20], [40]]
    assert said(found[1]) == [[PLACE, f"{REASONING} What of 2?"]]
    assert {clip.group for clip in found} == {name}
    (other,) = clips(f"{name}:{file}", prompt="Who?", clips=1)
    assert said(other) == [[PLACE, "Who?"]]


def interleaved(tmp_path: Path, task: str, question: str, count: int) -> Path:
    """A file of two tasks, with more columns than the row has pictures."""
    blank = {f"image_{number}": None for number in range(6)}
    shown = {f"image_{number}": encoded(10 + 10 * number) for number in range(count)}
    row = {"sample_id": "7", "sub_task": task, "question": question, **blank, **shown}
    other = {**row, "sample_id": "8", "sub_task": "VISION", "image_0": encoded(1)}
    return parquet(tmp_path / "in_domain.parquet", [other, row], tuple(blank))


@pytest.mark.parametrize(
    ("name", "task", "prompt"),
    [
        ("iedit", "IEdit", EDIT),
        ("magicbrush", "MagicBrush", EDIT),
        ("spot", "Spot-the-Diff", SPOT),
    ],
)
def test_two_pictures_are_in_the_prompt_of_the_paper(
    tmp_path: Path, name: str, task: str, prompt: str
) -> None:
    file = interleaved(tmp_path, task, f"{PLACE}{PLACE} Whatever?", 2)
    (clip,) = clips(f"{name}:{file}")
    assert (clip.name, clip.prompt) == ("7", prompt)
    assert shades(clip) == [10, 20]
    assert " ".join(said(clip)[0]) == prompt


@pytest.mark.parametrize(
    ("name", "task", "instruction"), [("pororosv", "PororoSV", PORORO), ("vist", "VIST", VIST)]
)
def test_stories_keep_the_captions_of_the_row(
    tmp_path: Path, name: str, task: str, instruction: str
) -> None:
    captions = [f"Caption #{number}: so {number}." for number in range(1, 5)]
    rest = " ".join(f"{PLACE} {caption}" for caption in captions) + f" {PLACE} Caption #5:"
    file = interleaved(tmp_path, task, f"Tell the end. {rest}", 5)
    (clip,) = clips(f"{name}:{file}")
    assert shades(clip) == [10, 20, 30, 40, 50]
    assert " ".join(said(clip)[0]) == f"{instruction} {rest}"
    assert said(clip)[0].count(PLACE) == 5


def test_conv_bench_asks_the_second_question(tmp_path: Path) -> None:
    row = {
        "ID": 3,
        "image_id": "v_one.png",
        "The_first_turn_instruction": "What is this?",
        "first_turn_answer": "A cat.",
        "The_second_turn_instruction": "And why?",
    }
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    folder = tmp_path / "visit_bench_images"
    folder.mkdir()
    picture(90).save(folder / "v_one.png")
    (clip,) = clips(f"convbench:{file}")
    assert (clip.name, clip.prompt, shades(clip)) == ("3", "And why?", [90])
    assert said(clip) == [[PLACE, "What is this?"], ["A cat."], ["And why?"]]
    assert clip.files() == [folder / "v_one.png"]
    (folder / "v_one.png").unlink()
    (clip,) = clips(f"convbench:{file}", media=folder)
    with pytest.raises(MediaError, match=r"v_one\.png"):
        clip.prepare()()
    with pytest.raises(ConfigError, match=r"convert ConvBench\.xlsx"):
        clips("convbench")


@pytest.mark.parametrize("name", ["nq", "gsm8k"])
def test_text_alone(tmp_path: Path, name: str) -> None:
    rows = [{"question": f"How many are {number}?", "answer": "x"} for number in range(3)]
    found = clips(f"{name}:{parquet(tmp_path / 'rows.parquet', rows)}", clips=2)
    assert len(found) == 2
    assert said(found[0]) == [["How many are 0?"]]
    assert found[0].prepare()().images == []
    assert found[0].files() == []


def test_other_rows_are_refused_by_name(tmp_path: Path) -> None:
    file = parquet(tmp_path / "rows.parquet", [{"text": "no question"}])
    with pytest.raises(ConfigError, match=r"not in the format of gsm8k: it has no column"):
        clips(f"gsm8k:{file}")
    file = interleaved(tmp_path, "IEdit", "So?", 2)
    with pytest.raises(ConfigError, match="holds no rows"):
        clips(f"vist:{file}")


def test_a_damaged_picture_is_an_error_of_its_clip(tmp_path: Path) -> None:
    row = {"question_id": "a", "question": "What?", "image": {"bytes": b"no", "path": None}}
    (clip,) = clips(f"pope:{parquet(tmp_path / 'rows.parquet', [row])}")
    with pytest.raises(MediaError, match="cannot read a picture of the set"):
        clip.prepare()()


def test_pictures_without_a_place_are_before_the_first_question() -> None:
    assert placed(["What?"], 2) == [f"{PLACE} {PLACE} What?"]
    assert placed(["First?", f"Then {PLACE}?"], 2) == [f"{PLACE} First?", f"Then {PLACE}?"]
    with pytest.raises(ConfigError, match="places for more than 1 pictures"):
        placed([f"{PLACE} {PLACE}"], 1)

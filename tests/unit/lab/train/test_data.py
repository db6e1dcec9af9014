"""LLaVA-style files: what is read, where content goes, and every refusal with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from draftlens_lab.train.data import parse_entry, read_data
from draftlens_lab.train.media import NUM_OPENED, check_media, evenly_spaced
from PIL import Image

from draftlens.core.errors import TrainingDataError
from tests.unit.lab.train.drafts import CLIPS, talk

GOOD = {"id": 1, "conversations": talk("hello", "hi"), "source": "ignored"}


def written(folder: Path, text: str, name: str = "data.json") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["data.json", "data.jsonl"])
def test_arrays_and_lines_hold_the_same_and_know_their_lines(tmp_path: Path, name: str) -> None:
    values = [GOOD, {"image": "a.png", "conversations": talk("<image>\nwhat?", "a\nb")}, GOOD]
    text = (
        json.dumps(values, indent=2)
        if name == "data.json"
        else "\n".join(map(json.dumps, values)) + "\n\n"
    )
    data = read_data(written(tmp_path, text, name))
    assert [entry.turns[-1] for entry in data.entries] == [
        ("assistant", "hi"),
        ("assistant", "a\nb"),
        ("assistant", "hi"),
    ]
    assert [entry.images for entry in data.entries] == [(), ("a.png",), ()]
    lines = [
        text[:position].count("\n") + 1
        for position in (
            text.index("{"),
            text.index('{\n    "image"') if name == "data.json" else text.index('{"image"'),
        )
    ]
    assert [entry.place for entry in data.entries[:2]] == [
        f"{tmp_path / name}, entry {n} (line {line})" for n, line in enumerate(lines, 1)
    ]
    assert lines[1] > lines[0]


def test_placeholders_become_content_in_their_places() -> None:
    entry = parse_entry(
        {
            "image": ["a.png", "b.png"],
            "video": "c.mp4",
            "conversations": [
                {"from": "system", "value": "be short"},
                *talk("<image>\nfirst\n\n<image>second <video>\n", "one", "and?", "two"),
            ],
        },
        "here",
    )
    root = Path("media")
    system, asked, answered, again, last = entry.messages(root)
    assert system == {"role": "system", "content": [{"type": "text", "text": "be short"}]}
    assert asked["content"] == [
        {"type": "image", "image": root / "a.png"},
        {"type": "text", "text": "first\n"},
        {"type": "image", "image": root / "b.png"},
        {"type": "text", "text": "second "},
        {"type": "video", "video": root / "c.mp4"},
    ]
    assert [m["role"] for m in (answered, again, last)] == ["assistant", "user", "assistant"]
    assert entry.media(root) == [
        ("image", root / "a.png"),
        ("image", root / "b.png"),
        ("video", root / "c.mp4"),
    ]


def test_media_are_looked_for_beside_the_data_or_where_one_says(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps([GOOD]))
    assert read_data(path).root == tmp_path
    assert read_data(path, Path("elsewhere")).root == Path("elsewhere")
    other = written(tmp_path, json.dumps([GOOD, GOOD]), "other.json")
    assert read_data(path).digest == read_data(path).digest != read_data(other).digest


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            f'[\n{json.dumps(GOOD)},\n{{"b" 2}}]',
            r"data\.json is not valid JSON at line 3, column 6: Expecting ':' delimiter",
        ),
        (f"[{json.dumps(GOOD)}\n{json.dumps(GOOD)}]", "line 2, column 1: expecting ',' or ']'"),
        (f"[{json.dumps(GOOD)},]", r"at line 1, column \d+: "),
        (f"[{json.dumps(GOOD)}] 5", "unexpected text after the array"),
        (f"[{json.dumps(GOOD)}", "expecting ',' or ']'"),
        ("", "contains no entries"),
        ("[ ]", "contains no entries"),
        (f"{json.dumps(GOOD)}\n[1]", r"entry 2 \(line 2\): an entry must be an object, not a list"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_json_is_refused_with_line_and_column(
    tmp_path: Path, text: str, sentence: str
) -> None:
    with pytest.raises(TrainingDataError, match=sentence):
        read_data(written(tmp_path, text))


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TrainingDataError, match=r"cannot read the data .*gone\.json: No such file"):
        read_data(tmp_path / "gone.json")
    (tmp_path / "latin.json").write_bytes(b'[{"a": "\xe4"}]')
    with pytest.raises(TrainingDataError, match="is not UTF-8 text: byte 8"):
        read_data(tmp_path / "latin.json")


def said(*pairs: tuple[Any, Any]) -> dict[str, Any]:
    return {"conversations": [{"from": speaker, "value": text} for speaker, text in pairs]}


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("text", "^here: an entry must be an object, not text"),
        ({}, "'conversations' must be a list of turns, not missing or null"),
        ({"conversations": []}, "'conversations' must be a list of turns, not an empty list"),
        (
            {"conversations": ["hi"]},
            "^here, turn 1: a turn must be an object with 'from' and 'value', not text",
        ),
        (said(("user", "hi")), "turn 1: 'from' must be one of system, human, gpt, not 'user'"),
        (said(("human", 3)), "turn 1: 'value' must be text, not a number"),
        (said(("gpt", "hi")), "turn 1: it is from 'gpt', not 'human'"),
        (
            said(("human", "a"), ("human", "b"), ("gpt", "c")),
            "turn 2: it is from 'human', not 'gpt'",
        ),
        (
            said(("human", "a"), ("gpt", "b"), ("system", "c")),
            "turn 3: it is from 'system', not 'human'",
        ),
        (said(("human", "a"), ("gpt", "b"), ("human", "c")), "must end with an answer"),
        (said(("system", "a")), "must end with an answer"),
        (said(("human", "a"), ("gpt", " \n")), "turn 2: the answer is empty"),
        (
            said(("human", "a"), ("gpt", "<image>")),
            "turn 2: <image> may only appear in a turn from 'human'",
        ),
        (
            said(("human", "<image>"), ("gpt", "b")),
            "its human turns have 1 <image> placeholders, but it lists 0 image",
        ),
        (
            {**said(("human", "a"), ("gpt", "b")), "image": "a.png"},
            "its human turns have 0 <image> placeholders, but it lists 1 image files",
        ),
        (
            {**said(("human", "a"), ("gpt", "b")), "video": ["a", "b"]},
            "its human turns have 0 <video> placeholders, but it lists 2 video",
        ),
        (
            {**said(("human", "a"), ("gpt", "b")), "image": 3},
            "'image' must be a path or a list of paths",
        ),
        (
            {**said(("human", "a"), ("gpt", "b")), "image": [""]},
            "'image' must be a path or a list of paths",
        ),
    ],
)
def test_wrong_entries_are_refused(value: Any, sentence: str) -> None:
    with pytest.raises(TrainingDataError, match=sentence):
        parse_entry(value, "here")
    with pytest.raises(TrainingDataError, match=r"^here"):
        parse_entry(value, "here")


def media_data(folder: Path, **media: str) -> Path:
    holder = "".join(f"<{kind}>" for kind in media)
    entries = [GOOD, {**media, "conversations": talk(f"{holder}\nwhat?", "that")}]
    return written(folder, json.dumps(entries, indent=1))


def test_media_are_there_and_can_be_opened(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    data = read_data(media_data(tmp_path, image="a.png", video=str(CLIPS / "drift.mp4")))
    assert check_media(data) == 2


@pytest.mark.parametrize(
    ("kind", "content", "cause"),
    [
        ("image", None, "there is no such file"),
        ("video", None, "there is no such file"),
        ("image", b"", "it is empty"),
        ("image", b"hello", "it is text, not an image"),
        ("video", b"hello", "it is text, not a video"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_entry_and_line(
    tmp_path: Path, kind: str, content: bytes | None, cause: str
) -> None:
    path = media_data(tmp_path, **{kind: "wrong.bin"})
    if content is not None:
        (tmp_path / "wrong.bin").write_bytes(content)
    line = path.read_text()[: path.read_text().index(f'"{kind}"')].count("\n")
    with pytest.raises(
        TrainingDataError, match=rf"entry 2 \(line {line}\): cannot read .*wrong\.bin: {cause}"
    ):
        check_media(read_data(path))


def test_every_file_is_looked_for_but_only_some_are_opened(tmp_path: Path) -> None:
    count = NUM_OPENED + 20
    for index in range(count):
        (tmp_path / f"{index}.png").write_bytes(b"hello")
    Image.new("RGB", (4, 4)).save(tmp_path / "good.png")
    opened = set(evenly_spaced(range(count), NUM_OPENED))
    for index in opened:
        (tmp_path / f"{index}.png").write_bytes((tmp_path / "good.png").read_bytes())
    entries = [
        {"image": f"{index}.png", "conversations": talk("<image>?", "that")}
        for index in range(count)
    ]
    path = written(tmp_path, json.dumps(entries))
    assert check_media(read_data(path)) == count
    left = next(index for index in range(count) if index not in opened)
    (tmp_path / f"{left}.png").unlink()
    with pytest.raises(TrainingDataError, match=rf"entry {left + 1} .*there is no such file"):
        check_media(read_data(path))


def test_spread_items_are_even_and_none_comes_twice() -> None:
    assert evenly_spaced(range(10), 5) == [0, 2, 4, 6, 8]
    assert evenly_spaced([1, 2], 5) == [1, 2]
    assert evenly_spaced([], 5) == []

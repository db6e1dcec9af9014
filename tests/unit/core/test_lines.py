"""Files of JSON lines, and what interruptions leave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from draftlens.core.errors import ConfigError
from draftlens.core.files import LineWriter, cut_incomplete_line, read_lines


def test_lines_come_back_and_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    assert read_lines(path, "text") == []
    for value in ({"text": "naïve\nline"}, {"text": "two"}):
        with LineWriter(path) as lines:
            lines.write(value)
    assert read_lines(path, "text") == [{"text": "naïve\nline"}, {"text": "two"}]
    assert path.read_text(encoding="utf-8").count("\n") == 2


def test_an_incomplete_last_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"a":1}\n{"a":')
    assert read_lines(path, "a") == [{"a": 1}]
    assert path.read_text() == '{"a":1}\n{"a":'
    cut_incomplete_line(path)
    assert path.read_text() == '{"a":1}\n'


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"a":1}\n{"a":\n')
    with pytest.raises(ConfigError, match=r"line 2 of .*answers.jsonl is damaged"):
        read_lines(path, "a")


@pytest.mark.parametrize(
    ("content", "number"),
    [
        (b"27 bytes without a line end", 1),
        (b"\x00\x00\x00\x18ftypmp42 a clip\n and its end", 1),
        (b'{"file":1}\n[1]\n', 2),
        (b'{"file":1}\n{"b":2}\n', 2),
        (b'{"file":1}\nnotes of mine', 2),
        (b'{"file":1}\n\n', 2),
    ],
)
def test_a_file_of_something_else_is_left_as_it_is(
    tmp_path: Path, content: bytes, number: int
) -> None:
    path = tmp_path / "mine"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"(?s)line {number} "):
        read_lines(path, "file")
    assert path.read_bytes() == content


def test_a_line_nested_too_deeply_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"a":' + "[" * 100_000 + "\n")
    with pytest.raises(ConfigError, match=r"line 1 of .* is damaged: it is nested too deeply"):
        read_lines(path, "a")


def test_names_that_are_not_utf_8_come_back(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    name = os.fsdecode(b"caf\xe9.mp4")
    with LineWriter(path) as lines:
        lines.write({"file": name})
    assert path.read_bytes().isascii()
    assert read_lines(path, "file") == [{"file": name}]


def test_the_disk_is_waited_for_at_intervals_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr("draftlens.core.files.os.fsync", synced.append)
    lines = LineWriter(tmp_path / "a", sync_seconds=60.0)
    for number in range(5):
        lines.write(number)
    assert synced == []
    lines.close()
    assert len(synced) == 1
    with LineWriter(tmp_path / "b", sync_seconds=0.0) as every:
        for number in range(5):
            every.write(number)
    assert len(synced) == 1 + 5 + 1


def test_a_full_disk_is_an_error_that_names_the_file() -> None:
    error = pytest.raises(OSError, match=r"No space left on device: '/dev/full'")
    with error, LineWriter(Path("/dev/full")) as lines:
        lines.write({"text": "one"})

"""Files of JSON lines, and what interruptions leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftlens.core.errors import ConfigError
from draftlens.core.lines import LineWriter, read_lines


def test_lines_come_back_and_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    assert read_lines(path) == []
    for value in ({"text": "naïve\nline"}, {"text": "two"}):
        with LineWriter(path) as lines:
            lines.write(value)
    assert read_lines(path) == [{"text": "naïve\nline"}, {"text": "two"}]
    assert path.read_text(encoding="utf-8").count("\n") == 2


def test_an_incomplete_last_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"a":1}\n{"b":')
    assert read_lines(path) == [{"a": 1}]
    assert path.read_text() == '{"a":1}\n'


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"a":1}\n{"b":\n')
    with pytest.raises(ConfigError, match=r"line 2 of .*answers.jsonl is damaged"):
        read_lines(path)


def test_the_disk_is_waited_for_at_intervals_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr("draftlens.core.lines.os.fsync", synced.append)
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

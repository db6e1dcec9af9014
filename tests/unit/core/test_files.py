"""Files are written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from draftlens.core.files import write_json, write_text


def test_an_interrupted_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "report.json"
    write_text(file, "old")

    def interrupt(source: Path, destination: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text(file, "new")
    assert file.read_text() == "old"


def test_nothing_else_remains(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    write_json(file, {"γ": 5})
    assert file.read_text(encoding="utf-8") == '{\n "γ": 5\n}\n'
    write_json(file, {"γ": [1, 2]}, indent=None)
    assert file.read_text(encoding="utf-8") == '{"γ": [1, 2]}\n'
    assert list(tmp_path.iterdir()) == [file]


def test_a_value_that_is_no_json_writes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    with pytest.raises(TypeError):
        write_json(file, {"path": tmp_path})
    assert json.dumps(list(tmp_path.iterdir())) == "[]"

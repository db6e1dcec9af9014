"""What an earlier run wrote about itself, and how two runs differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftlens.core.errors import ConfigError
from draftlens.core.runs import ABSENT, Difference, differences, read_description


def test_differences_are_found_key_by_key() -> None:
    before = {"models": {"target": "a", "draft": "d"}, "seed": 1, "list": [1, 2], "same": {"x": 0}}
    now = {"seed": 2, "models": {"target": "a"}, "list": [1], "same": {"x": 0}, "new": None}
    assert list(differences(before, now)) == [
        Difference("models.draft", "d", ABSENT),
        Difference("seed", 1, 2),
        Difference("list", [1, 2], [1]),
        Difference("new", ABSENT, None),
    ]
    assert list(differences(before, before)) == []


def test_a_description_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    with pytest.raises(ConfigError, match=r"cannot read .*run\.json, .* No such file"):
        read_description(file)
    file.write_text('{"seed": ')
    with pytest.raises(ConfigError, match=r"it is damaged \(.*\); --restart begins again"):
        read_description(file)
    file.write_text('{"seed": 1}')
    assert read_description(file) == {"seed": 1}

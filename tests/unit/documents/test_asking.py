"""Which profile a target has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers as hf

from draftlens import ConfigError
from draftlens.documents.asking import PROFILE_FILE, profile_for
from draftlens.documents.reading.targets import NAMED, PROFILES, TargetProfile


def target(folder: Path, config: Any) -> Any:
    model = SimpleNamespace(config=config)
    return SimpleNamespace(name=str(folder), backbone=SimpleNamespace(model=model))


def test_a_profile_of_the_folder_comes_before_the_known_ones(tmp_path: Path) -> None:
    folder = tmp_path / "olmOCR-2-7B"
    folder.mkdir()
    assert profile_for(target(folder, hf.Qwen2_5_VLConfig())) is NAMED["olmocr"]
    stored = folder / PROFILE_FILE
    stored.write_text(json.dumps({"page_prompt": "Read.", "dpi": 72}))
    read = profile_for(target(folder, hf.Qwen2_5_VLConfig()))
    assert read == TargetProfile(page_prompt="Read.", dpi=72)
    stored.write_text(json.dumps({"profile": "glm_ocr", "dpi": 72}))
    read = profile_for(target(folder, hf.Qwen2_5_VLConfig()))
    assert read == replace(PROFILES["glm_ocr"], dpi=72)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "is not valid"),
        ("null", "is not valid"),
        ('{"colour": 1}', "holds an object with fields among page_prompt, "),
        ('{"profile": "olmorc"}', "unknown profile 'olmorc'"),
        ('{"profile": "olmocr", "dpi": 0}', "dpi must be positive"),
        ('{"profile": ["olmocr"]}', "is not valid"),
    ],
)
def test_a_wrong_profile_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / PROFILE_FILE).write_text(text)
    with pytest.raises(ConfigError, match=message):
        profile_for(target(tmp_path, hf.Qwen2_5_VLConfig()))

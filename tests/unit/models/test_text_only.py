"""Checkpoints of text only are refused by name, before transformers reports an unknown class."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import Qwen2Config, Qwen2VLConfig

from draftlens.core.errors import ConfigError, UnsupportedModelError
from draftlens.models.load import load_model


@pytest.mark.parametrize(
    ("role", "wanted"),
    [
        ("draft", "a smaller vision-language model with the tokenizer of the target"),
        ("target", "name a vision-language model"),
    ],
)
def test_a_model_of_text_only(role: str, wanted: str, tmp_path: Path) -> None:
    Qwen2Config().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError) as error:
        load_model(str(tmp_path), role, "cpu")
    assert f"the {role} '{tmp_path}' is a model of text only (qwen2)" in str(error.value)
    assert wanted in str(error.value)
    assert "Unrecognized" not in str(error.value)


def test_other_faults_keep_their_own_messages(tmp_path: Path) -> None:
    Qwen2VLConfig().save_pretrained(tmp_path)
    with pytest.raises(ConfigError) as error:
        load_model(str(tmp_path), "draft", "cpu")
    assert "text only" not in str(error.value)
    with pytest.raises(ConfigError, match="there is no such folder"):
        load_model(str(tmp_path / "nowhere" / "model"), "draft", "cpu")

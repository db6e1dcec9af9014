"""Loading models by name: refusals, and the drafts known for targets."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from draftlens.core.errors import ConfigError, IncompatiblePairError
from draftlens.models.load import load_model, load_pair
from draftlens.models.pair import check_tokenizers
from draftlens.models.zoo import DRAFTS, EMBEDDED, draft_for, path_of


class Words:
    """A tokenizer that is only its vocabulary."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def get_vocab(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.words)}


def test_embedded_names_a_folder_for_each_role_and_other_names_stay() -> None:
    assert Path(path_of(EMBEDDED, "target")).parts[-2:] == ("embedded", "target")
    assert Path(path_of(EMBEDDED, "draft")).parts[-2:] == ("embedded", "draft")
    assert path_of("some/model", "draft") == "some/model"


def test_known_drafts_are_smaller_models_of_the_same_series() -> None:
    assert draft_for(EMBEDDED) == EMBEDDED
    assert draft_for("nobody/knows") is None
    for target, draft in DRAFTS.items():
        assert target != draft
        assert target.split("-")[0] == draft.split("-")[0]


def test_tokenizers_may_differ_in_padding_only() -> None:
    check_tokenizers(Words("a", "b"), Words("a", "b", "<pad>"), "one", "other")
    with pytest.raises(
        IncompatiblePairError,
        match="of one and other differ: id 1 is 'b' in one and 'c' in the other",
    ):
        check_tokenizers(Words("a", "b"), Words("a", "c"), "one", "other")
    with pytest.raises(IncompatiblePairError, match="have 1 and 3001 tokens"):
        check_tokenizers(Words("a"), Words("a", *map(str, range(3000))), "one", "other")


def test_bad_names_devices_and_dtypes_are_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="cannot load the target '/no/such': there is no such folder"
    ):
        load_model("/no/such", "target", "cpu")
    with pytest.raises(ConfigError, match="cannot load the draft"):
        load_model(str(tmp_path), "draft", "cpu")
    damaged = shutil.copytree(path_of(EMBEDDED, "draft"), tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes((damaged / "model.safetensors").read_bytes()[:5000])
    with pytest.raises(ConfigError, match=r"cannot load the draft .*damaged"):
        load_model(str(damaged), "draft", "cpu")
    with pytest.raises(
        ConfigError, match="unknown dtype 'int3'; known: auto, float32, bfloat16, float16"
    ):
        load_model(EMBEDDED, "target", "cpu", "int3")
    with pytest.raises(ConfigError, match="device 'nowhere' cannot be used"):
        load_model(EMBEDDED, "target", "nowhere")
    with pytest.raises(ConfigError, match="no draft is known for"):
        load_pair(path_of(EMBEDDED, "target"), "auto", "cpu")

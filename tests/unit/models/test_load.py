"""Loading models by name: refusals, and the drafts known for targets."""

from __future__ import annotations

import json
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import logging

from draftlens.core.errors import ConfigError, DraftlensError, IncompatiblePairError
from draftlens.load_engine import open_models
from draftlens.models import load
from draftlens.models.checks import check_tokenizers
from draftlens.models.known_pairs import EMBEDDED, PAIRS, draft_for, path_of
from draftlens.models.load import load_model, load_pair
from draftlens.models.loading import LoadOptions, PairOptions

CPU = LoadOptions(device="cpu")


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
    for pair in PAIRS:
        if pair.target == EMBEDDED:
            continue
        assert draft_for(pair.target) == pair.draft != pair.target
        assert pair.target.split("-")[0] == pair.draft.split("-")[0]


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
        load_model("/no/such", "target", CPU)
    with pytest.raises(ConfigError, match="cannot load the draft"):
        load_model(str(tmp_path), "draft", CPU)
    damaged = shutil.copytree(path_of(EMBEDDED, "draft"), tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes((damaged / "model.safetensors").read_bytes()[:5000])
    with pytest.raises(ConfigError, match=r"cannot load the draft .*damaged"):
        load_model(str(damaged), "draft", CPU)
    with pytest.raises(
        ConfigError, match="unknown dtype 'int3'; known: auto, float32, bfloat16, float16"
    ):
        LoadOptions(device="cpu", dtype="int3")
    with pytest.raises(ConfigError, match="device 'nowhere' cannot be used"):
        load_model(EMBEDDED, "target", LoadOptions(device="nowhere"))
    with pytest.raises(ConfigError, match=r"no draft is known for .* known for embedded, llava-hf"):
        load_pair(path_of(EMBEDDED, "draft"), "auto", PairOptions(CPU, CPU))


def test_a_local_copy_has_the_draft_of_its_original() -> None:
    target, draft = load_pair(path_of(EMBEDDED, "target"), "auto", PairOptions(CPU, CPU))
    assert draft is not None
    assert draft.name == EMBEDDED
    assert target.backbone.text_config.num_hidden_layers == 20


def test_a_draft_that_does_not_exist_is_refused_before_the_target_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loading a target may take minutes."""
    monkeypatch.setattr(load, "_read", lambda *_: pytest.fail("a model is loaded"))
    with pytest.raises(ConfigError, match="cannot load the draft '/no/such'"):
        load_pair(EMBEDDED, "/no/such", PairOptions(CPU, CPU))
    with pytest.raises(ConfigError, match="cannot load the draft '/no/such'"):
        open_models(EMBEDDED, "/no/such", options=PairOptions(CPU, CPU))


def test_bars_are_drawn_on_terminals_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error stream of the tests is no terminal."""
    before = logging.is_progress_bar_enabled()
    logging.enable_progress_bar()
    try:
        load_model(EMBEDDED, "draft", CPU)
        assert "Loading weights" not in capsys.readouterr().err
        assert logging.is_progress_bar_enabled()
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        load_model(EMBEDDED, "draft", CPU)
        assert "Loading weights" in capsys.readouterr().err
    finally:
        if not before:
            logging.disable_progress_bar()


HARMFUL = """
import pathlib
pathlib.Path({marker!r}).touch()
Model = Config = Processor = Tokenizer = generate = None
"""


@pytest.mark.parametrize(
    "harmful",
    [
        {"auto_map": {"AutoConfig": "harm.Config", "AutoModelForImageTextToText": "harm.Model"}},
        {"_attn_implementation_internal": "owner/harm"},  # CVE-2026-4372
        {"_attn_implementation": "owner/harm", "attn_implementation": "owner/harm"},
        {"trust_remote_code": True, "auto_map": {"AutoConfig": "harm.Config"}},  # CVE-2026-5241
        {"custom_generate": "harm", "trust_remote_code": True},
    ],
    ids=["auto_map", "internal", "attention", "trust", "custom_generate"],
)
def test_keys_of_a_checkpoint_run_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harmful: dict[str, Any]
) -> None:
    """The checkpoint is loaded as if they were not there, or refused, and nothing is fetched."""
    marker = tmp_path / "was run"
    folder = shutil.copytree(path_of(EMBEDDED, "draft"), tmp_path / "model")
    for name in ("harm.py", "custom_generate/generate.py", "harm/custom_generate/generate.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(HARMFUL.format(marker=str(marker)))
    files = ("config.json", "generation_config.json", "tokenizer_config.json")
    for file in [folder / name for name in (*files, "processor_config.json")]:
        if file.exists():
            content = json.loads(file.read_text())
            if "auto_map" in harmful and file.name != "config.json":
                classes = {"AutoProcessor": "harm.Processor", "AutoTokenizer": "harm.Tokenizer"}
                content |= {**harmful, "auto_map": classes}
            else:
                content |= harmful
            if "text_config" in content:
                content["text_config"] |= harmful
            file.write_text(json.dumps(content))
    asked: list[Any] = []

    def refuse(self: socket.socket, address: Any) -> None:
        asked.append(address)
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with suppress(DraftlensError):
        loaded = load_model(str(folder), "draft", CPU)
        ids = torch.tensor([[1, 2, 3]])
        loaded.backbone.model.generate(input_ids=ids, max_new_tokens=1)
    assert not marker.exists()
    assert not asked

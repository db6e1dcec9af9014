"""Names on the Hub: the cache comes first, and a Hub that does not answer is not waited for."""

from __future__ import annotations

import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from draftlens.core import hub
from draftlens.core.errors import ConfigError
from draftlens.models.known_pairs import EMBEDDED, path_of
from draftlens.models.load import load_model
from draftlens.models.loading import LoadOptions

NAME = "somebody/a-model"
CPU = LoadOptions(device="cpu")


@pytest.fixture
def silent_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Hub that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", address)
        yield


def test_a_hub_that_says_nothing_is_given_up(
    silent_hub: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "HUB_SECONDS", 0.5)
    began = time.monotonic()
    with pytest.raises(ConfigError, match=f"cannot load the target '{NAME}': .*") as refused:
        load_model(NAME, "target", CPU)
    assert time.monotonic() - began < 60  # transformers alone asks for minutes
    assert "\n" not in str(refused.value)
    assert hub.HUB_SECONDS < 10


def test_offline_is_said_in_one_sentence() -> None:
    with pytest.raises(
        ConfigError,
        match="no such folder, no copy in the local cache, and HF_HUB_OFFLINE keeps it from",
    ):
        load_model(NAME, "target", CPU)
    with pytest.raises(ConfigError, match="there is no such folder, and no such model on the Hub"):
        load_model("not a name", "draft", CPU)


def test_a_cached_model_is_read_without_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "models--somebody--a-model"
    snapshot = repository / "snapshots" / ("a" * 40)
    shutil.copytree(path_of(EMBEDDED, "draft"), snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    asked: list[str] = []
    monkeypatch.setattr(hub.HfApi, "model_info", lambda *words, **_: asked.append(words[1]))
    options = LoadOptions(device="cpu", cache_dir=tmp_path)
    loaded = load_model(NAME, "draft", options)
    assert loaded.name == NAME
    assert asked == []
    shutil.rmtree(snapshot)
    snapshot.mkdir()
    with pytest.raises(ConfigError, match=re.escape(f"cannot load the draft '{NAME}'")):
        load_model(NAME, "draft", options)
    assert asked == [NAME]

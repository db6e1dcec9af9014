"""The output folder must not contain inputs of the run: a restart would delete them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from draftlens_lab.train import DraftTraining, run, train_draft
from draftlens_lab.train.resume import check_apart
from families import FAMILIES

from draftlens.core.errors import ConfigError
from tests.unit.lab.train.drafts import Interrupt, training, write_data

LLAVA = next(family for family in FAMILIES if family.name == "llava")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"), 3)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def made(llava: str, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run: a draft with its checkpoints and its record."""
    out = tmp_path_factory.mktemp("made") / "out"
    train_draft(training(data, out, llava, stages="instruct", max_steps=1))
    return out


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("name", ["draft", "target", "distil", "processor", "checkpoint", "config"])
def test_models_of_the_run_are_not_written_over(
    llava: str, data: Path, made: Path, tmp_path: Path, name: str, restart: bool
) -> None:
    """Nothing is written or deleted if the folder is a model's or contains a model."""
    out = tmp_path / "out"
    shutil.copytree(made, out)
    before = contents(out)
    inside = {
        "checkpoint": out / "checkpoints" / "instruct" / "checkpoint-1",
        "config": out / "config.json",
    }
    option = {"checkpoint": "draft", "config": "draft_config"}.get(name, name)
    given: dict[str, Any] = {"draft": llava, option: str(inside.get(name, out))}
    if name == "config":
        given |= {"draft": None, "target": llava}
    with pytest.raises(
        ConfigError,
        match=rf"^the output folder '.*out' is, or contains, an input of the run \({option} is '",
    ) as told:
        train_draft(training(data, out, stages="instruct", restart=restart, **given))
    assert "restart" not in str(told.value)
    assert contents(out) == before


def test_links_and_spellings_do_not_hide_a_model(data: Path, made: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(made)
    for out, draft in (
        (tmp_path / "link", made),
        (made, tmp_path / "link"),
        (made.parent / "x" / ".." / "out", made),
    ):
        before = contents(made)
        (made.parent / "x").mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match="name another folder"):
            train_draft(training(data, out, str(draft), restart=True))
        assert contents(made) == before


def options(**paths: Any) -> DraftTraining:
    return DraftTraining(**{"data": "d/data.json", "out": "out", "draft": "draft", **paths})


def test_data_and_media_stand_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder beside the inputs, or inside an input folder, is allowed; a Hub id is no folder."""
    monkeypatch.chdir(tmp_path)
    for folder in ("out/media", "d", "draft"):
        Path(folder).mkdir(parents=True)
    for name, path in (("data", "out/data.json"), ("projector_data", "out/more.json")):
        Path(path).write_text("[]")
        with pytest.raises(ConfigError, match=rf"\({name} is '{path}'\)"):
            check_apart(options(**{name: path}))
    for path in ("out", "out/media"):
        with pytest.raises(ConfigError, match=rf"\(media_root is '{path}'\)"):
            check_apart(options(media_root=path))
    with pytest.raises(ConfigError, match=r"\(draft is 'new'\)"):
        check_apart(options(draft="new", out="new"))
    check_apart(options(media_root="."))
    check_apart(options(out="draft/new"))
    check_apart(options(out="d/new"))
    check_apart(options(draft="out/some-model"))
    check_apart(options(draft="embedded", target="embedded"))


def test_what_is_said_of_an_interrupted_restart_is_true(
    llava: str, data: Path, tmp_path: Path
) -> None:
    """The same call with `restart` would delete the checkpoint to resume from."""
    begun = training(data, tmp_path / "out", llava, stages="instruct", max_steps=3, save_steps=1)
    anew = replace(begun, restart=True)
    for options_, told in (
        (begun, "the same command resumes"),
        (anew, "the same command without --restart resumes"),
    ):
        with pytest.raises(KeyboardInterrupt, match=rf"^{told} from step 1 of the instruct stage$"):
            train_draft(options_, callbacks=[Interrupt(2)])
    assert train_draft(begun).resumed == {"instruct": 1}
    with pytest.raises(
        KeyboardInterrupt,
        match=r"^the same command without --restart starts from the beginning, because there was "
        r"no checkpoint yet$",
    ):
        train_draft(anew, callbacks=[Interrupt(1)])
    assert json.loads((begun.out / "training.json").read_text())


def test_a_run_that_was_begun_is_not_tried_again(
    llava: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its models were tried before its folder was made; a restart tries them before it deletes."""
    begun = training(data, tmp_path / "out", llava, stages="instruct", max_steps=1)
    train_draft(begun)
    before = contents(begun.out)

    def refuse(*_: Any) -> None:
        raise ConfigError("tried")

    monkeypatch.setattr(run, "try_models", refuse)
    assert train_draft(begun).resumed == {"instruct": 1}
    with pytest.raises(ConfigError, match="tried"):
        train_draft(replace(begun, restart=True))
    assert contents(begun.out).keys() == before.keys()

"""The output folder: the run that its checkpoints belong to, and which of them are complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from accelerate.utils import broadcast_object_list

from draftlens.core.errors import ConfigError, DraftlensError
from draftlens.core.files import parse_json, write_json
from draftlens.core.runs import ABSENT, differences, read_description
from draftlens.models.known_pairs import path_of
from draftlens_lab.train.options import DraftTraining

RUN = "training.json"
"""The file with the fingerprint of the run."""

CHECKPOINTS = "checkpoints"
"""The folder with a folder of checkpoints for each stage."""

SAVING = f"{CHECKPOINTS}/.saving"
"""The folder that the final model is written to before it is moved to the output folder."""

STATE = "trainer_state.json"
"""The file that the Trainer writes last: a checkpoint is complete if this file is."""

NEUTRAL_OPTIONS = (
    "data",
    "out",
    "projector_data",
    "restart",
    "workers",
    "save_steps",
    "keep_checkpoints",
    "log_steps",
    "device_batch",
    "gradient_checkpointing",
)
"""Options that do not change what is learnt, so that a resumed run may change them. Data are
compared by their digests."""

_CONFIG_KEY = "the draft's config"
_DIGEST_KEYS = (
    "data",
    "projector_data",
    "media of data",
    "media of projector_data",
    _CONFIG_KEY,
)
_MODEL_ROLES = {"draft": "draft", "processor": "draft", "target": "target", "distil": "target"}
_PATH_OPTIONS = ("draft_config", "data", "projector_data", "media_root")
_RESULT_FILES = (RUN, "config.json", "loss.json", "loss.png")

T = TypeVar("T")


@dataclass(frozen=True)
class _Decision(Generic[T]):
    value: T | None = None
    error: Exception | None = None


def agreed(state: Any, decide: Callable[[], T]) -> T:
    """Make a decision in the main process and broadcast it to all processes.

    The other processes wait for it, so none of them reads a folder while the main process changes
    it.

    Args:
        decide: called in the main process only; its return value must be picklable.
    """
    decision: _Decision[T] | None = None
    if state.is_main_process:
        try:
            decision = _Decision(value=decide())
        except (DraftlensError, OSError) as error:
            decision = _Decision(error=error)
    (decision,) = broadcast_object_list([decision])
    assert decision is not None
    if decision.error is not None:
        raise decision.error
    return cast(T, decision.value)


def run_properties(options: DraftTraining, digests: dict[str, str]) -> dict[str, Any]:
    """The properties that identify a run, by name.

    Args:
        digests: SHA-256 of each data file, under the name of its option, and of the media.
    """
    run: dict[str, Any] = {}
    for item in fields(options):
        if item.name in NEUTRAL_OPTIONS:
            continue
        value = getattr(options, item.name)
        run[item.name] = str(value) if isinstance(value, Path) else value
    run[_CONFIG_KEY] = _config_digest(options)
    return {**run, **digests}


def check_apart(options: DraftTraining) -> None:
    """Refuse an output folder that contains an input of the run, which the run would overwrite."""
    inputs = {name: (getattr(options, name), role) for name, role in _MODEL_ROLES.items()}
    inputs |= {name: (getattr(options, name), "") for name in _PATH_OPTIONS}
    for name, (value, role) in inputs.items():
        if value is not None and _contains(options.out, Path(path_of(str(value), role))):
            raise ConfigError(
                f"the output folder {str(options.out)!r} is, or contains, an input of the run "
                f"({name} is {str(value)!r}): name another folder"
            )


def check_folder(out: Path, run: dict[str, Any], restart: bool) -> None:
    """Refuse a folder that does not belong to this run.

    Args:
        out: the output folder; it need not exist.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file, not a folder")
    if (out / RUN).exists():
        changes = "" if restart else _changes(read_description(out / RUN), run)
        if changes:
            raise ConfigError(
                f"{out} contains another run ({changes}): name another folder, or pass "
                f"--restart to delete that run and start over"
            )
    elif out.exists() and any(out.iterdir()):
        raise ConfigError(
            f"{out} is not empty and contains no run of draft training: name another folder"
        )


def is_begun(out: Path, restart: bool) -> bool:
    """Whether a checked folder already contains this run."""
    return not restart and (out / RUN).exists()


def open_folder(out: Path, run: dict[str, Any], restart: bool) -> None:
    """Prepare a checked folder for the run.

    Incomplete files are deleted, and with `restart` the run in the folder.
    """
    if restart:
        _delete_run(out)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / RUN, run, indent=2)
    discard_incomplete(out)


def latest(out: Path, stage: str) -> Path | None:
    """The newest complete checkpoint of a stage."""
    newest: Path | None = None
    newest_step = -1
    for path in (out / CHECKPOINTS / stage).glob("checkpoint-*"):
        step = path.name.split("-")[1]
        if step.isdigit() and int(step) > newest_step and _is_complete(path):
            newest = path
            newest_step = int(step)
    return newest


def state_of(checkpoint: Path) -> dict[str, Any]:
    """The Trainer's state at a checkpoint: ``global_step``, ``log_history`` and more."""
    state: dict[str, Any] = read_description(checkpoint / STATE)
    return state


def discard_incomplete(out: Path) -> None:
    """Delete checkpoints and other files that were not completely written."""
    for path in (out / CHECKPOINTS).glob("*/checkpoint-*"):
        if not _is_complete(path):
            shutil.rmtree(path)
    shutil.rmtree(out / SAVING, ignore_errors=True)
    for path in out.glob("*.part"):
        path.unlink()


def move_in(out: Path) -> None:
    """Move the final model from `SAVING` to the output folder.

    The config comes last, so a folder with a config contains a complete model.
    """
    files = sorted((out / SAVING).iterdir(), key=lambda path: path.name == "config.json")
    for file in files:
        os.replace(file, out / file.name)
    (out / SAVING).rmdir()


def _config_digest(options: DraftTraining) -> str | None:
    """SHA-256 of the draft's config; None for a Hub id."""
    path = options.draft_config or Path(path_of(options.draft or "", "draft"))
    if path.is_dir():
        path = path / "config.json"
    return sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _contains(out: Path, path: Path) -> bool:
    path = path.resolve()
    if not path.exists() or not out.exists():
        # The path is a Hub id, or the folder is new and has no files to lose.
        return path == out.resolve()
    return any(out.samefile(folder) for folder in (path, *path.parents))


def _changes(before: dict[str, Any], now: dict[str, Any]) -> str:
    phrases = []
    for difference in differences(before, now):
        if difference.path in _DIGEST_KEYS:
            phrases.append(f"{difference.path} differs")
            continue
        values = (difference.before, difference.now)
        if ABSENT in values and None in values:
            continue  # an option that one of the two versions did not have
        there = _value_text(difference.before)
        here = _value_text(difference.now)
        phrases.append(f"{difference.path} is {there} there and {here} here")
    return ", ".join(sorted(phrases))


def _value_text(value: Any) -> str:
    return "not known" if value is ABSENT else repr(value)


def _delete_run(out: Path) -> None:
    shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)
    results = [out / name for name in _RESULT_FILES]
    for path in [*out.glob("model*.safetensors*"), *results]:
        path.unlink(missing_ok=True)


def _is_complete(checkpoint: Path) -> bool:
    try:
        parse_json((checkpoint / STATE).read_bytes())
    except (OSError, ValueError):
        return False
    return True

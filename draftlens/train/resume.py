"""The output folder: which run its checkpoints are of, which of them are whole, and where a rerun
goes on."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from accelerate.utils import broadcast_object_list

from draftlens.core.errors import ConfigError, DraftlensError
from draftlens.models.zoo import path_of
from draftlens.train.options import DraftTraining

RUN = "training.json"
CHECKPOINTS = "checkpoints"
STATE = "trainer_state.json"
"""What the Trainer writes last: a checkpoint with a sound one is whole."""

NO_MATTER = (
    *(
        "data",
        "out",
        "projector_data",
        "restart",
        "workers",
        "save_steps",
        "keep_checkpoints",
        "log_steps",
    ),
    *("device_batch", "gradient_checkpointing"),
)
"""Options that may change from one run to the next: they do not change what is learnt (data are
compared as such)."""


T = TypeVar("T")


def agreed(state: Any, decide: Callable[[], T]) -> T:
    """What the main process decides, told to all: the others wait for it, and what it refuses, all
    refuse.

    So nobody looks at a folder while another one makes it.

    Args:
        state: accelerate's `PartialState`.
        decide: called in the main process alone; its value must be picklable.

    Raises:
        DraftlensError, OSError: what `decide` raised, in every process.
    """
    told: list[Any] = [None, None]
    if state.is_main_process:
        try:
            told[0] = decide()
        except (DraftlensError, OSError) as error:
            told[1] = error
    value, refusal = broadcast_object_list(told)
    if refusal is not None:
        raise refusal
    decided: T = value
    return decided


def fingerprint(options: DraftTraining, digests: dict[str, str]) -> dict[str, Any]:
    """What makes a run the same run, by name.

    Args:
        digests: SHA-256 of each data file, by the name of its option, and of the media.
    """
    known = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in NO_MATTER}
    config = options.draft_config or Path(path_of(options.draft or "", "draft"))
    file = config / "config.json" if config.is_dir() else config
    content = sha256(file.read_bytes()).hexdigest() if file.is_file() else None
    plain = {
        name: str(value) if isinstance(value, Path) else value for name, value in known.items()
    }
    return {**plain, "the draft's config": content, **digests}


def check_apart(options: DraftTraining) -> None:
    """Refuse an output folder with something in it that the run reads: `open_folder` and the end
    write over it.

    Raises:
        ConfigError: the folder is, or holds, a model, data or media; names them.
    """
    models = {"draft": "draft", "processor": "draft", "target": "target", "distil": "target"}
    for name in (*models, "draft_config", "data", "projector_data", "media_root"):
        value = getattr(options, name)
        if value is not None and _holds(
            options.out, Path(path_of(str(value), models.get(name, "")))
        ):
            raise ConfigError(
                f"the output folder {str(options.out)!r} is, or holds, what the run reads "
                f"({name} is {str(value)!r}): name another folder"
            )


def _holds(out: Path, path: Path) -> bool:
    """Whether a path is the folder or lies in it, whatever links and spellings lead there."""
    path = path.resolve()
    if not (
        path.exists() and out.exists()
    ):  # a Hub id, or a folder in which there is nothing to lose
        return path == out.resolve()
    return any(out.samefile(folder) for folder in (path, *path.parents))


def check_folder(out: Path, run: dict[str, Any], restart: bool) -> None:
    """Refuse a folder that is not this run's.

    Args:
        out: the output folder; need not be there.
        run: the run's `fingerprint`.
        restart: whatever run was there is to be forgotten.

    Raises:
        ConfigError: the folder holds another run (says what differs), or something that is no run
            at all.
    """
    record = out / RUN
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file, not a folder")
    if record.exists():
        if not restart and (difference := _differences(_read(record), run)):
            raise ConfigError(
                f"{out} holds another run ({difference}): name another folder, or pass "
                f"--restart to start anew"
            )
    elif out.exists() and any(out.iterdir()):
        raise ConfigError(
            f"{out} is not empty and holds no run of draft training: name another folder"
        )


def is_begun(out: Path, restart: bool) -> bool:
    """Whether a checked folder holds this run already, which then passed all that is tried before
    its first step."""
    return not restart and (out / RUN).exists()


def open_folder(out: Path, run: dict[str, Any], restart: bool) -> None:
    """Make a checked folder this run's: clear it of what is half-written, and with `restart` of the
    run in it."""
    if restart:
        _forget(out)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / RUN, run)
    discard_incomplete(out)


def latest(out: Path, stage: str) -> Path | None:
    """The newest whole checkpoint of a stage."""
    steps = {
        int(path.name.split("-")[1]): path for path in _checkpoints(out, stage) if _is_whole(path)
    }
    return steps[max(steps)] if steps else None


def state_of(checkpoint: Path) -> dict[str, Any]:
    """The Trainer's state at a whole checkpoint: `global_step`, `max_steps`, `log_history` and
    more."""
    state: dict[str, Any] = _read(checkpoint / STATE)
    return state


def discard_incomplete(out: Path) -> None:
    """Delete checkpoints that were cut off while they were written, and what else is
    half-written."""
    for path in (out / CHECKPOINTS).glob("*/checkpoint-*"):
        if not _is_whole(path):
            shutil.rmtree(path)
    shutil.rmtree(out / SAVING, ignore_errors=True)
    for path in out.glob("*.part"):
        path.unlink()


SAVING = f"{CHECKPOINTS}/.saving"
"""Where the final model is written before it is moved to its place."""


def move_in(out: Path) -> None:
    """Move the final model from `SAVING` to its place, the config last: a folder with one is a
    whole model."""
    files = sorted((out / SAVING).iterdir(), key=lambda path: path.name == "config.json")
    for file in files:
        os.replace(file, out / file.name)
    (out / SAVING).rmdir()


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that is never seen half-written."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    os.replace(part, path)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}, which an earlier run wrote: {error}") from error


def _differences(there: dict[str, Any], here: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} differs"
        if name in DIGESTED
        else f"{name} is {there.get(name)!r} there and {here.get(name)!r} here"
        for name in sorted(there.keys() | here.keys())
        if there.get(name) != here.get(name)
    )


DIGESTED = (
    "data",
    "projector_data",
    "media of data",
    "media of projector_data",
    "the draft's config",
)


def _checkpoints(out: Path, stage: str) -> list[Path]:
    return [
        path
        for path in (out / CHECKPOINTS / stage).glob("checkpoint-*")
        if path.name.split("-")[1].isdigit()
    ]


def _is_whole(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def _forget(out: Path) -> None:
    """Delete what a run made; anything else in the folder stays."""
    shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)
    made = [
        *out.glob("model*.safetensors*"),
        *(out / name for name in (RUN, "config.json", "loss.json", "loss.png")),
    ]
    for path in made:
        path.unlink(missing_ok=True)

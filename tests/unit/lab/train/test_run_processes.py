"""Several processes train one draft: the main process alone checks and prepares the folder."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from accelerate.state import PartialState
from draftlens_lab.train import resume, run, train_draft
from draftlens_lab.train.options import DraftTraining
from families import FAMILIES
from safetensors.torch import load_file
from transformers import Trainer, TrainerCallback

from tests.unit.lab.train.drafts import (
    Float64Trainer,
    rounding_of_weights,
    save_model,
    training,
    write_data,
)

RANKS = 3
SECONDS = 600
"""Seconds of a slow machine after which the processes of a test hang."""

_SERVER = "forkserver"
"""Processes are forked from one in which autograd has not run, since its threads end at a fork."""

pytestmark = [
    pytest.mark.dist,
    pytest.mark.skipif(
        _SERVER not in multiprocessing.get_all_start_methods(), reason="processes cannot be forked"
    ),
]

Told = dict[str, Any]
Act = Callable[[int], Told]
"""What a process does, given its rank; it is pickled."""


def as_rank(rank: int, port: int, act: Act, pipe: Any, count: int) -> None:
    """Run a function in a process of its own, with the environment of its rank."""
    where = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
        "MASTER_PORT": port,
    }
    os.environ.update(
        {name: str(value) for name, value in where.items()} | {"MASTER_ADDR": "127.0.0.1"}
    )
    torch.set_num_threads(1)
    try:
        told = act(rank)
    except BaseException as error:
        told = {"raised": type(error).__name__, "said": str(error)}
    pipe.send(told)
    pipe.close()
    os._exit(0)  # without waiting for the other processes


def in_processes(act: Act, count: int = RANKS) -> list[Told]:
    """Run a function in several processes at once and return their results."""
    context: Any = multiprocessing.get_context(_SERVER)
    context.set_forkserver_preload(["accelerate", "transformers.trainer"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    ranks = [
        context.Process(target=as_rank, args=(rank, port, act, pipes[rank][1], count))
        for rank in range(count)
    ]
    try:
        for rank in ranks:
            rank.start()
        deadline = time.monotonic() + SECONDS
        assert all(pipe.poll(max(0.0, deadline - time.monotonic())) for pipe, _ in pipes), (
            "they wait for each other"
        )
        return [pipe.recv() for pipe, _ in pipes]
    finally:
        for rank in ranks:
            if rank.pid is not None:
                rank.kill()
                rank.join()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"), 6)


@pytest.fixture
def options(llava: str, data: Path, tmp_path: Path) -> Callable[..., DraftTraining]:
    def made(**changed: Any) -> DraftTraining:
        small = {"stages": "instruct", "batch": RANKS, "max_steps": 3, "save_steps": 2, **changed}
        return training(data, tmp_path / "out", llava, **small)

    return made


def dawdle(rank: int) -> None:
    """Delay the processes other than the main one, and the writing of the run's record."""
    replaced = pytest.MonkeyPatch()  # until the process ends
    read, write, save = run._read_files, os.replace, Trainer._save_rng_state

    def late(options: DraftTraining) -> Any:
        time.sleep(0.4 * rank)
        return read(options)

    def slow(part: Path, file: Path) -> None:
        time.sleep(0.4 if Path(file).name == resume.RUN else 0)
        write(part, file)

    def draw(trainer: Any, folder: str) -> None:
        time.sleep(0.2 * rank)
        save(trainer, folder)

    replaced.setattr(Trainer, "_save_rng_state", draw)
    replaced.setattr(run, "_read_files", late)
    replaced.setattr(os, "replace", slow)


class Parts(TrainerCallback):
    """Notes how many processes' parts a checkpoint has when the Trainer calls it done."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self.counts.append(len(list(folder.glob("rng_state_*.pth"))))


def train_late(rank: int, asked: DraftTraining) -> Told:
    """Train, with delays that differ by rank."""
    dawdle(rank)
    parts = Parts()
    made = train_draft(asked, callbacks=[parts])
    return {
        "losses": made.losses,
        "resumed": made.resumed,
        "main": made.main,
        "parts": parts.counts,
    }


def test_a_run_and_its_restart(options: Any, tmp_path: Path) -> None:
    """All processes find the folder as the main process prepared it, also after a restart."""
    for asked in (options(), options(seed=1, restart=True)):
        told = in_processes(partial(train_late, asked=asked))
        assert [one.get("main") for one in told] == [True, False, False], told
        assert [one["resumed"] for one in told] == [{"instruct": 0}] * RANKS
        assert told[0]["parts"] == [RANKS, RANKS]
        assert told[0]["losses"] == told[1]["losses"] == told[2]["losses"]
        assert json.loads((tmp_path / "out" / "loss.json").read_text()) == told[0]["losses"]
        assert not list((tmp_path / "out").glob("*.part"))


def train_and_tell(rank: int, asked: DraftTraining) -> Told:
    """Train and return the losses."""
    return {"losses": train_draft(asked).losses}


def train_in_float64(rank: int, asked: DraftTraining) -> Told:
    """The same in float64."""
    with patch.object(run, "DraftTrainer", Float64Trainer):
        return train_and_tell(rank, asked)


def test_what_the_main_process_refuses_all_refuse(options: Any, tmp_path: Path) -> None:
    """No process continues alone or waits for one that has ended."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    told = in_processes(partial(train_and_tell, asked=options()))
    assert [one.get("raised") for one in told] == ["ConfigError"] * RANKS, told
    assert all("is not empty and contains no run of draft training" in one["said"] for one in told)


def decide_or_refuse(rank: int) -> Told:
    """Agree on a value of the main process, then on its error."""
    state, asked = PartialState(cpu=True), []

    def decide() -> str:
        asked.append(rank)
        time.sleep(0.2)
        return f"by {rank}"

    def refuse() -> None:
        raise PermissionError(f"not for {rank}")

    value = resume.agreed(state, decide)
    try:
        resume.agreed(state, refuse)
    except PermissionError as error:
        return {"value": value, "asked": asked, "refused": str(error)}
    return {}


def test_only_the_main_process_decides() -> None:
    """All processes receive its value, or the error that it raised."""
    told = in_processes(decide_or_refuse)
    assert told == [
        {"value": "by 0", "asked": [0] if rank == 0 else [], "refused": "not for 0"}
        for rank in range(3)
    ]


@pytest.mark.parametrize(
    ("stages", "entries", "changed"),
    [
        ("both", 7, {"batch": 4, "projector_batch": 4}),
        ("instruct", 5, {"batch": 4, "device_batch": 1, "group_by_length": True}),
        ("instruct", 6, {"batch": 4, "distil": True}),
        ("instruct", 5, {"batch": 4, "distil": True, "prune_ratio": "0.2..0.9"}),
    ],
)
def test_one_process_and_two_learn_the_same(
    llava: str, tmp_path: Path, stages: str, entries: int, changed: dict[str, Any]
) -> None:
    """Where entries do not fill the last round of an epoch, none is counted twice."""
    data = write_data(tmp_path / "data", entries)
    if changed.get("distil"):
        changed = {**changed, "distil": save_model(FAMILIES[0], tmp_path / "target", seed=3)}
    few = {
        "stages": stages,
        "epochs": 2,
        "projector_epochs": 2,
        "lr": 1e-3,
        "projector_lr": 1e-3,
        **changed,
    }

    one, two = (
        in_processes(
            partial(train_in_float64, asked=training(data, tmp_path / str(count), llava, **few)),
            count,
        )[0]
        for count in (1, 2)
    )
    assert list(one) == list(two) == ["losses"], (one, two)
    for stage, points in one["losses"].items():
        assert len(points) == 4
        assert [p["loss"] for p in two["losses"][stage]] == pytest.approx(
            [p["loss"] for p in points], rel=1e-4
        )
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("1", "2")]
    bound = rounding_of_weights(lr=1e-3)
    for name in weights[0]:
        torch.testing.assert_close(weights[0][name], weights[1][name], rtol=0, atol=bound)

"""The training loop: equal to a loop by hand, and the same after an interruption as without."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from recipes.pair.loop import Job, OutOfTime, Phase, StepResult, learning_rate, to_device, train

PHASE = Phase("tiny", 24, 0.02, warmup=4, save_every=10)


@dataclass(frozen=True)
class Pair:
    x: torch.Tensor
    y: torch.Tensor


class Net(nn.Module):
    """Dropout, so that the random state counts; a frozen layer, a normalisation and a buffer."""

    calls: torch.Tensor

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.eye = nn.Linear(5, 6).requires_grad_(False)
        self.body = nn.Sequential(
            nn.Linear(6, 8), nn.LayerNorm(8), nn.Dropout(dropout), nn.Linear(8, 1)
        )
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out: torch.Tensor = self.body(self.eye(x))
        return out


def pairs(start: int) -> Iterator[Pair]:
    for step in count(start):
        made = torch.Generator().manual_seed(step)
        x = torch.randn(7, 5, generator=made)
        yield Pair(x, x.sum(1, keepdim=True))


def job(net: Net, kind: str = "dataclass", phase: Phase = PHASE) -> Job[Any]:
    """The same numbers as a dataclass, as a tuple that holds one, or as a dictionary with
    labels."""
    pack: Callable[[Pair], Any] = {
        "dataclass": lambda pair: pair,
        "tuple": lambda pair: (pair.x, pair),
        "dict": lambda pair: {"input_ids": pair.x, "labels": pair.y},
    }[kind]

    def loss(batch: Any) -> StepResult:
        x, y = (batch["input_ids"], batch["labels"]) if kind == "dict" else (None, None)
        if x is None or y is None:
            pair = batch[1] if kind == "tuple" else batch
            x, y = pair.x, pair.y
        # Large enough that the gradients are clipped.
        return StepResult(9 * (net(x) - y).pow(2).mean(), 0.5)

    return Job(phase, net, lambda start: map(pack, pairs(start)), loss, lambda _: 7)


def crash_at(step: int) -> Callable[[int], None]:
    def on_save(at: int) -> None:
        if at == step:
            raise KeyboardInterrupt

    return on_save


def check_equal(a: nn.Module, b: nn.Module) -> None:
    assert all(
        torch.equal(x, y)
        for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Net, Path]:
    net, folder = Net(), tmp_path_factory.mktemp("whole")
    train(job(net), folder)
    return net, folder


@pytest.mark.parametrize("kind", ["dataclass", "tuple", "dict"])
def test_train_takes_the_same_steps_as_a_loop_by_hand(kind: str, tmp_path: Path) -> None:
    net, other = Net(dropout=0), Net(dropout=0)
    train(job(net, kind), tmp_path)
    trained = [p for p in other.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": PHASE.decay},
        {"params": [p for p in trained if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer, task, source = torch.optim.AdamW(groups, betas=(0.9, 0.98)), job(other), pairs(0)
    for step in range(PHASE.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(PHASE, step)
        optimizer.zero_grad()
        task.loss(next(source)).loss.backward()  # type: ignore[no-untyped-call]
        assert nn.utils.clip_grad_norm_(trained, 1.0) > 1
        optimizer.step()
    check_equal(net, other)


def test_an_interrupted_phase_ends_with_the_same_weights(
    whole: tuple[Net, Path], tmp_path: Path
) -> None:
    for step in (10, 20):
        with pytest.raises(KeyboardInterrupt):
            train(job(Net()), tmp_path, crash_at(step))
        torch.manual_seed(99)
    net, saves = Net(), list[int]()
    train(job(net), tmp_path, saves.append)
    assert saves == [24]
    check_equal(net, whole[0])


def test_a_half_written_checkpoint_is_passed_over(whole: tuple[Net, Path], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(job(Net()), tmp_path, crash_at(10))
    half = tmp_path / "tiny" / "checkpoint-20"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    net = Net()
    train(job(net), tmp_path)
    check_equal(net, whole[0])


def test_a_finished_phase_gives_its_weights_at_once(whole: tuple[Net, Path]) -> None:
    net, saves = Net(), list[int]()
    seconds = train(job(net), whole[1], saves.append)
    assert saves == []
    assert 0 < seconds == train(job(Net()), whole[1])
    check_equal(net, whole[0])
    assert [path.name for path in (whole[1] / "tiny").iterdir()] == ["checkpoint-24"]


def test_out_of_time_saves_and_goes_on_at_the_next_call(
    whole: tuple[Net, Path], tmp_path: Path
) -> None:
    saves: list[int] = []
    for step in range(1, 4):
        with pytest.raises(OutOfTime) as stopped:
            train(job(Net()), tmp_path, saves.append, minutes=0)
        assert stopped.value.step == step
    net = Net()
    train(job(net), tmp_path, saves.append, minutes=60)
    assert saves == [1, 2, 3, 10, 20, 24]
    check_equal(net, whole[0])


def test_seconds_add_up_over_interruptions(tmp_path: Path) -> None:
    with pytest.raises(OutOfTime):
        train(job(Net()), tmp_path, minutes=0)
    state = tmp_path / "tiny" / "checkpoint-1" / "trainer_state.json"
    content = json.loads(state.read_text())
    assert content["stateful_callbacks"]["_Journal"]["spent"] > 0
    content["stateful_callbacks"]["_Journal"]["spent"] = 1000.0
    state.write_text(json.dumps(content))
    assert train(job(Net()), tmp_path) > 1000


def test_the_curve_has_each_line_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    phase = Phase("tiny", 60, 0.02, save_every=30)

    def crash(step: int) -> Iterator[Pair]:
        for at, pair in zip(range(step, 50), pairs(step), strict=False):
            assert at < 45
            yield pair

    task = job(Net(), phase=phase)
    with pytest.raises(AssertionError):
        train(Job(phase, task.module, crash, task.loss, task.tokens), tmp_path)
    train(job(Net(), phase=phase), tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "tiny.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [20, 40, 60]
    assert rows[0]["right"] == 0.5
    assert rows[0]["tokens_per_second"] > 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" loss ")[0] for line in lines] == [
        f"tiny step {step}/60" for step in (20, 40, 40, 60)
    ]


def test_to_device_moves_all_tensors_of_a_batch() -> None:
    x = torch.zeros(2)
    moved = to_device((x, Pair(x, x), {"ids": x}, "name"), torch.device("meta"))
    assert all(t.device.type == "meta" for t in (moved[0], moved[1].x, moved[1].y, moved[2]["ids"]))
    assert moved[3] == "name"


def test_a_phase_with_a_horizon_ends_on_its_way_down() -> None:
    """Its learning rates are the first ones of the longer phase."""
    whole, part = Phase("whole", 50, 1e-3, warmup=5), Phase("part", 20, 1e-3, warmup=5, horizon=50)
    assert [learning_rate(part, step) for step in range(20)] == [
        learning_rate(whole, step) for step in range(20)
    ]
    assert learning_rate(part, 19) > 0.5e-3

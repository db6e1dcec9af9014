"""Several processes from the command line and under torchrun's environment."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.e2e.conftest import CLIPS

pytestmark = [pytest.mark.slow, pytest.mark.dist]

CLIP = str(CLIPS / "shapes.mp4")
BLOCKS = json.dumps({"name": "spava", "blocks": 4})
WORDS = ["caption", CLIP, "--frames", "16", "--max-new-tokens", "12", "--device", "cpu", "--json"]

ASK = """
import os, signal, torch
torch.set_num_threads(1)
import draftlens
engine = draftlens.load(device="cpu", method="plain", calibrate=False)
model = engine.target.backbone.model
inputs = engine.read("Hello").target
result = draftlens.generate(model, inputs, prefill="ring", max_new_tokens=4)
print("rank", os.environ["RANK"], result.tokens, flush=True)
custom = draftlens.SpeculativeGenerate(None, prefill="ring")
model.generate(**inputs, max_new_tokens=4, custom_generate=custom)
print("equal", custom.last.tokens == result.tokens, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
"""What rank 0 asks. The other rank does not get so far."""


ASK_GPUS = """
import draftlens
from draftlens.prefill.spava.hosts import hosts_of
ring = {"name": "ring", "decode": "sharded"}
engine = draftlens.load(method="plain", dtype="float32", prefill=ring, calibrate=False)
clip = "draftlens/embedded/clips/drift.mp4"
tokens = []
for prefill in (ring, "full"):
    result = engine.generate("Describe the video.", video=clip, prefill=prefill, max_new_tokens=16)
    tokens.append(result.tokens)
hosts = hosts_of(engine.target.backbone)
wire = hosts._wire_of(engine.target.backbone.device)
print(type(wire).__name__, tokens[0] == tokens[1])
"""
"""What rank 0 asks where each rank has a GPU."""


def test_hosts_change_nothing(command: Any) -> None:
    """Two hosts give the answer of one process, and leave no process."""
    before = set(psutil.Process().children())
    answers = []
    for more in ({}, {"hosts": 2}):
        prefill = json.dumps({**json.loads(BLOCKS), **more})
        status, out, err = command(*WORDS, "--prefill", prefill)
        assert status == 0, err
        answers.append(json.loads(out))
    assert answers[0]["tokens"] == answers[1]["tokens"]
    assert answers[1]["approximate"] == ["spava prefill: 4 blocks, anchor n/64, passing n/128"]
    gc.collect()  # the processes end with the model
    psutil.wait_procs(set(psutil.Process().children()) - before, 10)
    assert set(psutil.Process().children()) == before


def test_verify_compares_on_the_same_prefill(command: Any) -> None:
    """Speculation changes nothing, and the prefill something: both are said."""
    clip = str(CLIPS / "drift.mp4")
    words = ["verify", clip, "--frames", "8", "--max-new-tokens", "40", "--device", "cpu"]
    options = json.dumps({"name": "spava", "anchor": 0, "blocks": 8, "passing": 0})
    status, out, err = command(*words, "--prefill", options, "--json")
    assert status == 0, err
    report = json.loads(out)
    assert report["identical"]
    assert report["reference"] == "plain decoding on the same prefill"
    assert report["approximate"] == ["spava prefill: 8 blocks, anchor 0, nothing passed"]
    moved = report["moved_from_stock"]
    assert 0 < moved["same"] < moved["tokens"]
    assert moved["first_divergence"]["margin"] > 0


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--prefill", '{"name": "full", "hosts": 2}'], "prefill 'full' has no option 'hosts'"),
        (["--prefill", "sapva"], "unknown prefill 'sapva'; known: full, ring, spava"),
        (["--prefill", '{"name": "spava", "blocks": 0}'], "blocks must be a whole number"),
    ],
)
def test_bad_values_are_refused_in_a_sentence(command: Any, more: list[str], why: str) -> None:
    status, _, err = command(*WORDS, *more)
    assert status == 2
    assert why in " ".join(err.split())


def under_torchrun(folder: Path, words: str) -> tuple[list[int], list[tuple[str, str]]]:
    """Exit status and output of two processes in torchrun's environment."""
    script = folder / "ask.py"
    script.write_text(words)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    processes = []
    for rank in range(2):
        processes.append(
            subprocess.Popen(
                [sys.executable, str(script)],
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [process.communicate(timeout=240) for process in processes]
    return [process.returncode for process in processes], outputs


def test_under_torchrun(tmp_path: Path) -> None:
    """Only rank 0 goes on after the first call that several processes answer, also with
    transformers' own models. When it is killed, the other ends with a sentence."""
    statuses, outputs = under_torchrun(tmp_path, ASK)
    assert outputs[0][0].startswith("rank 0 [["), outputs
    assert outputs[0][0].endswith("equal True\n"), outputs
    assert outputs[1][0] == ""
    assert statuses == [-signal.SIGKILL, 2]
    assert "error: host 0 has ended" in outputs[1][1]
    assert outputs[1][1].count("error:") == 1


@pytest.mark.gpu
def test_two_gpus_exchange_over_nccl(tmp_path: Path) -> None:
    """The ring in float32, keys and values on both GPUs: the tokens of one GPU."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    statuses, outputs = under_torchrun(tmp_path, ASK_GPUS)
    assert outputs[0][0] == "NcclTransport True\n", outputs
    assert statuses == [0, 0]

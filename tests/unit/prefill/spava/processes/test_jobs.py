"""Jobs as bytes: reading them runs no code."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from draftlens.prefill.spava.processes.jobs import ALLOWED, packed, unpacked
from draftlens.prefill.spava.sharded_cache import Along, Fetch
from draftlens.prefill.spava.vision import Encode

CPU = torch.device("cpu")


class Hostile:
    """Runs a command where it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def as_tensor(content: bytes | memoryview) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


@pytest.mark.parametrize("by", ["torch", "pickle"])
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "inside a job"])
def test_nothing_that_is_sent_is_run(by: str, inside: bool, tmp_path: Path) -> None:
    hostile = Hostile(tmp_path / "was_run")
    content: Any = ([], Encode("image", {"x": hostile}, 1, 0)) if inside else hostile
    buffer = io.BytesIO()
    if by == "torch":
        torch.save(content, buffer)
    else:
        pickle.dump(content, buffer, protocol=2)
    with pytest.raises(ValueError, match="no job of tensors and plain data"):
        unpacked(as_tensor(buffer.getvalue()), CPU, ALLOWED)
    assert not hostile.folder.exists()


def test_what_is_no_job_is_refused() -> None:
    for content in (b"\0", b"no job", packed(torch.nn.Identity())):
        with pytest.raises(ValueError, match="no job of tensors and plain data"):
            unpacked(as_tensor(content), CPU, ALLOWED)


def test_jobs_arrive_as_they_were_sent() -> None:
    """Those of prompts are sent by the tests of whole answers (`tests/exact/test_hosts.py`)."""
    job = Along((3, 5), torch.tensor([[1, 2]]), torch.arange(6).view(3, 1, 2))
    forgotten, arrived = unpacked(as_tensor(packed(([1, 2], job))), CPU, ALLOWED)
    assert forgotten == [1, 2]
    assert arrived.numbers == job.numbers
    assert torch.equal(arrived.tokens, job.tokens)
    assert torch.equal(arrived.position_ids, job.position_ids)
    fetch = Fetch((0,), ((torch.tensor([4]),),))
    _, arrived = unpacked(as_tensor(packed(([], fetch))), CPU, ALLOWED)
    assert arrived.places[0][0].tolist() == [4]

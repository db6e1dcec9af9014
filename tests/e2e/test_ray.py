"""A local Ray of two workers, of which one is killed midway: every clip is once in the output. And
documents of a dataset.

Skipped where Ray is not installed, as in CI: it weighs some 130 MB.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pdfs
import pytest

import draftlens
from draftlens.batch.map import MapOptions
from draftlens.batch.ray import CaptionBatch
from draftlens.documents.ray import ParseBatch
from tests.e2e.conftest import CLIPS

ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")

pytestmark = [
    pytest.mark.dist,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

COUNT = 12


@pytest.fixture
def local_ray(tmp_path: Path) -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    yield
    ray.shutdown()


def test_a_killed_worker_costs_no_clip(local_ray: None, tmp_path: Path) -> None:
    paths = []
    for number in range(COUNT):
        paths.append(str(tmp_path / f"{number}.mp4"))
        shutil.copy(CLIPS / ("shapes.mp4" if number % 2 else "drift.mp4"), paths[-1])
    Path(paths[5]).write_bytes(b"no clip")
    marker = tmp_path / "killed"

    class Dying(CaptionBatch):
        """Is killed once, in its second batch."""

        batches = 0

        def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
            self.batches += 1
            if self.batches == 2 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__call__(batch)

    answers = ray.data.from_items([{"path": path} for path in paths]).map_batches(
        Dying,
        fn_constructor_kwargs={
            "prompt": "Describe the video.",
            "load": {"device": "cpu", "method": "plain"},
            "options": MapOptions(num_frames=2, batch=2, readers=1),
            "generation": {"max_new_tokens": 6},
        },
        concurrency=2,
        batch_size=2,
    )
    rows = answers.take_all()
    assert marker.exists()
    assert sorted(row["path"] for row in rows) == sorted(paths)
    for row in rows:
        failed = row["path"] == paths[5]
        assert bool(row["error"]) == failed
        assert row["tokens"] == (0 if failed else 6)
        assert bool(row["text"]) != failed


def test_documents_of_a_dataset(local_ray: None, tmp_path: Path) -> None:
    """Each is parsed by one of two workers."""
    paths = [str(tmp_path / f"{number}.pdf") for number in range(4)]
    for path in paths[:3]:
        pdfs.write(Path(path), [pdfs.columns, pdfs.blank])
    rows = (
        ray.data.from_items([{"path": path} for path in paths])
        .map_batches(
            ParseBatch,
            fn_constructor_kwargs={"layout": "blocks"},
            concurrency=2,
            batch_size=1,
        )
        .take_all()
    )
    assert sorted(row["path"] for row in rows) == paths
    (expected, _) = draftlens.parse(paths[0], layout="blocks")
    for row in rows:
        failed = row["path"] == paths[3]
        assert bool(row["error"]) == failed
        assert row["markdown"] == ("" if failed else expected.markdown.strip())
        assert (row["pages"], row["failed"]) == ((0, 1) if failed else (2, 0))

"""What a release consists of: the source distribution and the wheel, installed where nothing is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from email import message_from_bytes
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://host.example/owner/draftlens"

build: Any = pytest.importorskip("hatchling.build")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The wheel that is built from the source distribution alone."""
    folder = tmp_path_factory.mktemp("dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTLENS_REPOSITORY", REPOSITORY)
        patch.chdir(ROOT)
        archive = folder / build.build_sdist(str(folder))
        with tarfile.open(archive) as sources:
            sources.extractall(folder, filter="data")
        patch.chdir(folder / archive.name.removesuffix(".tar.gz"))
        yield folder / build.build_wheel(str(folder))


def readme_hook() -> Any:
    """The module `hatch_build`."""
    spec = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_wheel_runs_the_demo_where_nothing_else_is_installed(
    wheel: Path, tmp_path: Path
) -> None:
    """Nothing but the dependencies. A wheel is installed by unpacking it, and a script that calls
    its entry point."""
    site = tmp_path / "site"
    with ZipFile(wheel) as archive:
        archive.extractall(site)
    (info,) = site.glob("*.dist-info")
    assert "draftlens = draftlens.cli:main" in (info / "entry_points.txt").read_text()
    assert (site / "draftlens" / "py.typed").exists()
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    words = ["demo", "--json", "--max-new-tokens", "12", "--frames", "2", "--device", "cpu"]
    demo = subprocess.run(
        [sys.executable, "-c", "from draftlens.cli import main; main()", *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert demo.returncode == 0, demo.stderr
    report = json.loads(demo.stdout)
    assert report["clip"].startswith(str(site))
    assert report["identical"]


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        metadata = message_from_bytes(archive.read(name))
        names = archive.namelist()
    urls = metadata.get_all("Project-URL") or []
    assert f"Repository, {REPOSITORY}" in urls
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "Typing :: Typed" in (metadata.get_all("Classifier") or [])
    assert all(name.startswith("draftlens") for name in names)
    text = str(metadata.get_payload())
    version = metadata["Version"]
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(links) > 20
    for link in links:
        path = re.sub(rf"^{REPOSITORY}/(blob|raw)/v{version}/", "", link)
        assert path != link
        assert (ROOT / path.partition("#")[0]).exists(), link


def test_without_a_repository_the_readme_has_no_links_that_lead_nowhere() -> None:
    hook = readme_hook()
    text = "![p](a.png) [x](docs/x.md#y), [z](https://e.org), [here](#top)"
    assert hook.with_links(text, "", "1") == " x, [z](https://e.org), [here](#top)"
    assert hook.with_links(text, "r", "1") == (
        "![p](r/raw/v1/a.png) [x](r/blob/v1/docs/x.md#y), [z](https://e.org), [here](#top)"
    )
    assert hook.urls_of("") == {}

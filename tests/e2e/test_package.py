"""What a release consists of: two wheels and their sources, installed where nothing is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from email import message_from_bytes
from email.message import Message
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

import draftlens
from recipes.release.commands import DEFAULT, Command, page_pdf, run
from recipes.release.wheels import problems, read_wheel

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


@pytest.fixture(scope="module")
def lab_wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("lab")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT / "lab")
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


def test_two_wheels_are_a_release(wheel: Path, lab_wheel: Path) -> None:
    package, lab = read_wheel(wheel), read_wheel(lab_wheel)
    assert problems([lab, package]) == []
    assert problems([package]) == [
        "A release has one wheel each of draftlens and draftlens-lab, not ['draftlens']."
    ]
    assert package.version == draftlens.__version__
    extras = package.metadata.get_all("Provides-Extra") or []
    assert {"all", "documents", "lab", "ray", "serve"} <= set(extras)


def test_wheels_that_are_no_release_are_named(wheel: Path, lab_wheel: Path) -> None:
    package, lab = read_wheel(wheel), read_wheel(lab_wheel)
    other = Message()
    other["Name"], other["Version"] = "draftlens-lab", "9.9.9"
    files = (*lab.files, "draftlens_lab/fonts/a.ttf")
    sentences = problems([package, replace(lab, metadata=other, files=files)])
    version = package.version
    assert sentences == [
        f"The versions differ: {version} and 9.9.9.",
        f"draftlens-lab does not require draftlens=={version}.",
        f"NOTICE of {lab_wheel.name} does not name draftlens_lab/fonts/a.ttf.",
    ]
    bare = replace(package, files=("draftlens/embedded/target/model.safetensors",), notice="")
    assert problems([bare, lab]) == [
        f"{wheel.name} has no LICENSE.",
        f"{wheel.name} has no NOTICE.",
        f"NOTICE of {wheel.name} does not name draftlens/embedded/target/model.safetensors.",
    ]


def test_the_commands_of_a_release_run_from_the_wheels(
    wheel: Path, lab_wheel: Path, tmp_path: Path
) -> None:
    """One of each wheel; `make release` runs all of them in an environment of their own."""
    site = tmp_path / "site"
    for path in (wheel, lab_wheel):
        with ZipFile(path) as archive:
            archive.extractall(site)
    variables = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    launcher = [sys.executable, "-c", "from draftlens.cli import main; main()"]
    (methods,) = [command for command in DEFAULT if command.words == ("methods",)]
    assert run(launcher, methods, tmp_path, variables) > 0
    run(launcher, Command(("train-draft", "--help"), "Train"), tmp_path, variables)
    with pytest.raises(RuntimeError, match="does not print 'nonsense'"):
        run(launcher, Command(("train-draft", "--help"), "nonsense"), tmp_path, variables)
    with pytest.raises(RuntimeError, match=r"draftlens nothing: status 2"):
        run(launcher, Command(("nothing",)), tmp_path, variables)


def test_the_page_of_the_check_is_a_pdf_file() -> None:
    pdfium = pytest.importorskip("pypdfium2")
    document = pdfium.PdfDocument(page_pdf("One page."))
    assert len(document) == 1
    assert document[0].get_textpage().get_text_range() == "One page."
    document.close()


def test_the_lab_has_the_licences_of_the_repository() -> None:
    for name in ("LICENSE", "NOTICE"):
        assert (ROOT / "lab" / name).read_bytes() == (ROOT / name).read_bytes()


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

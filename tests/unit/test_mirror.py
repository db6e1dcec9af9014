"""Unit tests stand where their modules stand, and bear their names."""

from __future__ import annotations

from pathlib import Path

import pytest

UNIT = Path(__file__).parent
ROOT = UNIT.parents[1]
OUTSIDE = {"recipes": ROOT / "recipes", "benchmarks": ROOT / "benchmarks"}
RULES = {"covering", "house", "mirror", "names_in_docs", "public", "reading_lists", "removal"}
"""What tests of the whole repository are about; they have no module."""


def mirrored(folder: Path) -> Path:
    """The folder of the modules that the tests of `folder` are about."""
    match folder.relative_to(UNIT).parts:
        case ("lab", name, *rest) if name in OUTSIDE:
            return OUTSIDE[name].joinpath(*rest)
        case ("lab", *rest):
            return (ROOT / "lab" / "draftlens_lab").joinpath(*rest)
        case parts:
            return (ROOT / "draftlens").joinpath(*parts)


def modules(folder: Path) -> set[str]:
    """Modules and packages in a folder, and the name of the folder, which is a package itself."""
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    return {path.stem for path in folder.glob("[!_]*.py")} | packages | {folder.name}


FILES = [path.relative_to(UNIT).as_posix() for path in sorted(UNIT.rglob("test_*.py"))]


@pytest.mark.parametrize("file", FILES)
def test_a_test_is_named_after_a_module(file: str) -> None:
    """`test_MODULE.py`, or `test_MODULE_SUBJECT.py` where a module has several."""
    path = UNIT / file
    name = path.stem.removeprefix("test_")
    if path.parent == UNIT and name in RULES:
        return
    names = modules(mirrored(path.parent))
    assert any(name == module or name.startswith(f"{module}_") for module in names)

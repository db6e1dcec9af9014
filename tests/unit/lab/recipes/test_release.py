"""The lowest versions of requirements, as constraints for pip."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement

from recipes.release.oldest import EXTRAS, PROJECT, lowest


def test_lower_bounds_become_constraints() -> None:
    lines = [
        "torch>=2.11",
        "numpy",
        "transformers>=5.23,<6",
        "openvino>=2026.0; sys_platform == 'x'",
    ]
    assert list(lowest(lines)) == ["torch==2.11", "transformers==5.23", "openvino==2026.0"]


def test_what_is_installed_is_not_older() -> None:
    project = tomllib.loads(Path(PROJECT).read_text(encoding="utf-8"))["project"]
    extras = [line for name in EXTRAS for line in project["optional-dependencies"][name]]
    found = list(lowest([*project["dependencies"], *extras]))
    assert len(found) > 10
    for line in found:
        requirement = Requirement(line.replace("==", ">="))
        assert requirement.specifier.contains(version(requirement.name), prereleases=True), line

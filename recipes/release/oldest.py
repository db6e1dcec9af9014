"""Prints constraints for pip: the lowest version of each requirement that has a lower bound.

python -m recipes.release.oldest > dist/oldest.txt
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
EXTRAS = ("serve", "documents")


def lowest(requirements: Iterable[str]) -> Iterator[str]:
    """`name==version` for each requirement with `>=`.

    Example:

        >>> list(lowest(["torch>=2.11", "numpy", "transformers>=5.23,<6"]))
        ['torch==2.11', 'transformers==5.23']
    """
    for text in requirements:
        requirement = Requirement(text)
        for bound in requirement.specifier:
            if bound.operator == ">=":
                yield f"{requirement.name}=={bound.version}"


def main() -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *(line for name in EXTRAS for line in extras[name])]
    print("\n".join(lowest(requirements)))


if __name__ == "__main__":
    main()

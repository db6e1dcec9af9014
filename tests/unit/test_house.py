"""Rules of the house that a reader of one file cannot see."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import draftlens

ROOT = Path(draftlens.__file__).parent
KINDS = {"method", "drafter", "pruner", "plan", "prefill", "schedule"}
"""Names of objects that are used through their seam and never by their class."""


def sources() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def packages() -> list[ModuleType]:
    """Every package below draftlens, imported."""
    found = pkgutil.walk_packages([str(ROOT)], "draftlens.")
    return [draftlens, *(importlib.import_module(info.name) for info in found if info.ispkg)]


def last_name(node: ast.expr) -> str:
    """`drafter` of `session.drafter`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_nobody_asks_which_kind_of_method_drafter_or_pruner_there_is(path: Path) -> None:
    """Neither by class nor by a name that only some have.

    The one exception: `methods.resolve` refuses objects that are no methods, by `callable`.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id not in ("isinstance", "hasattr", "getattr") or not node.args:
            continue
        if last_name(node.args[0]) not in KINDS:
            continue
        if path.name == "base.py" and path.parent.name == "methods":
            continue
        kind = node.args[1]
        plain = isinstance(kind, ast.Name) and kind.id in ("str", "Mapping")
        assert plain, f"{path}:{node.lineno} {ast.unparse(node)}"


def test_modules_are_not_shadowed_by_what_their_packages_export() -> None:
    """`draftlens.load` is a function, so no module may have this name."""
    for package in packages():
        for info in pkgutil.iter_modules(package.__path__):
            value = getattr(package, info.name, None)
            is_module = value is None or isinstance(value, ModuleType)
            assert is_module, f"{package.__name__}.{info.name}"


def test_every_public_name_has_an_example_that_runs() -> None:
    """Exceptions share the example of their base class."""
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    for name in draftlens.__all__:
        value = getattr(draftlens, name)
        if (
            value is not draftlens.DraftlensError
            and value in draftlens.DraftlensError.__subclasses__()
        ):
            continue
        examples = [test for test in finder.find(value, name) if test.examples]
        assert examples, f"draftlens.{name} has no example in its docstring"
        for test in examples:
            assert runner.run(test).failed == 0, name


MODULES = (
    "draftlens.core.options",
    "draftlens.core.prefill_readings",
    "draftlens.core.options",
    "draftlens.core.stats",
    "draftlens.core.text",
    "draftlens.core.timeline",
    "draftlens.methods.base",
    "draftlens.models.loading",
    "draftlens.pruning.base",
    "draftlens_lab.explain.gantt",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_seams_run(name: str) -> None:
    module = importlib.import_module(name)
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_the_name_of_a_method_is_written_once() -> None:
    """In the registry; classes carry none."""
    from draftlens.methods.base import METHODS, PlainDecoding, name_of
    from draftlens.methods.hsd.config import HSD
    from draftlens.methods.lookup.config import Lookup
    from draftlens.methods.speculative import SpeculativeDecoding
    from draftlens.methods.specvlm.config import SpecVLM

    for kind, name in (
        (PlainDecoding, "plain"),
        (SpeculativeDecoding, "speculative"),
        (SpecVLM, "specvlm"),
        (Lookup, "lookup"),
        (HSD, "hsd"),
    ):
        assert METHODS[name] is kind
        assert name_of(kind()) == name
        assert not hasattr(kind, "name")


def imports_of(path: Path, modules: set[str]) -> set[str]:
    """Modules of draftlens that a module imports when it is imported itself."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & modules) or ({node.module} & modules)
    return found


def test_no_module_imports_itself_through_others() -> None:
    """What is left after modules without open imports are taken away, again and again, is a
    cycle."""
    names = {
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in sources()
    }
    open_imports = {name: imports_of(path, set(names)) - {name} for name, path in names.items()}
    while free := {name for name, imports in open_imports.items() if not imports}:
        open_imports = {
            name: imports - free for name, imports in open_imports.items() if name not in free
        }
    assert open_imports == {}


def test_docstrings_are_utf_8() -> None:
    """Python 3.13 compiles no others, such as halves of surrogate pairs."""
    others = [
        f"{path}:{node.lineno}"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if any(0xD800 <= ord(each) < 0xE000 for each in str(node.value.value))
    ]
    assert others == []

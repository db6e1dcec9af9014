"""HTML pages from the templates beside this file. A page is one file that loads nothing else.

Jinja2 escapes every text that a template prints. `tojson` also escapes what could end a script
element, so that no title, prompt or answer breaks out of its place.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""Content security policy with which the page cannot load anything."""

_JSON = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}


def render_page(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(values)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("draftlens_lab.explain"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = _JSON
    environment.globals["policy"] = POLICY
    environment.globals["asset"] = _asset
    return environment


def _asset(name: str) -> Markup:
    folder = files("draftlens_lab.explain") / "templates"
    return Markup((folder / name).read_text(encoding="utf-8"))

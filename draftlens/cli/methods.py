"""`draftlens methods`: lists decoding methods and their parts, also those of other packages."""

from __future__ import annotations

import json
from typing import Any

from draftlens.cli.options import AsJson


def methods(as_json: AsJson = False) -> None:
    """List the decoding methods, the pruners, the views and weights of `tabed`, the prefills,
    the schedules and the engines of passes, with the defaults of their options and where they
    come from.

    Other packages add some by the entry points `draftlens.methods`, `draftlens.pruners`,
    `draftlens.prefills`, `draftlens.views`, `draftlens.weights` and `draftlens.passes`. An entry
    that cannot be imported is listed with its error.
    """
    from draftlens.cli.catalogue import listed
    from draftlens.cli.show import print_json, table

    kinds = listed()
    if as_json:
        print_json(kinds)
        return
    for title, rows in kinds.items():
        cells = []
        for row in rows:
            options = [f"{name}={_shown(value)}" for name, value in row["options"].items()]
            cells.append(
                (row["name"], row["package"], row["error"] or ", ".join(options) or "none")
            )
        table(title, ("name", "package", "options and defaults"), cells)


def _shown(value: Any) -> str:
    """A default as it is written on the command line."""
    return json.dumps(value, ensure_ascii=False).strip('"')

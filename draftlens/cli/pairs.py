"""`draftlens pairs`: lists the targets whose draft is known."""

from __future__ import annotations

from draftlens.cli.options import AsJson


def pairs(as_json: AsJson = False) -> None:
    """List the pairs of models that --draft auto knows, and how each was checked.

    Copies of a target are recognized by their configuration: local folders, quantized variants,
    tuned models of the same size.
    """
    from draftlens.cli.show import console, print_json, table
    from draftlens.models.zoo import PAIRS

    listed = [
        {"target": pair.target, "draft": pair.draft, "checked": pair.checked} for pair in PAIRS
    ]
    if as_json:
        print_json(listed)
        return
    table("", ("target", "draft", "checked"), [list(pair.values()) for pair in listed])
    console.print("tokenizers and vocabularies are compared whenever a pair is loaded", style="dim")

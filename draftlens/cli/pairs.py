"""`draftlens pairs`: lists targets with a known draft."""

from __future__ import annotations

from draftlens.cli.options import AsJson


def pairs(as_json: AsJson = False) -> None:
    """List the pairs of models that --draft auto finds, and how each was checked.

    Copies of a target are recognized by their configuration: local folders, quantized variants,
    tuned models of the same size.
    """
    from draftlens.cli.show import console, print_json
    from draftlens.models.known_pairs import PAIRS

    listed = [
        {"target": pair.target, "draft": pair.draft, "checked": pair.checked} for pair in PAIRS
    ]
    if as_json:
        print_json(listed)
        return
    # No table: names are copied from here, and narrow terminals would break them.
    for checked in dict.fromkeys(pair.checked for pair in PAIRS):
        console.print(f"{checked}:", style="bold")
        for pair in PAIRS:
            if pair.checked == checked:
                line = f"  --target {pair.target} --draft {pair.draft}"
                console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print("tokenizers and vocabularies are compared whenever a pair is loaded", style="dim")

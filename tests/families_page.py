"""The tables of families in `docs/families.md`, made from `tests/census.json`.

`PYTHONPATH=.:tests python tests/families_page.py` writes them; so does the census.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap

import transformers as hf
from census import COMMAND, Verdict, version, written
from document_models import READERS
from families import FAMILIES
from picture_types import PICTURE_TYPES
from type_exceptions import EXEMPT, Exempt

PAGE = Path(__file__).parents[1] / "docs" / "families.md"
BEGIN = f"<!-- families: {COMMAND} -->\n"
END = "<!-- end of families -->\n"

DRAFTS = {"trees": "trees and chains", "chains": "chains", "nothing": "no: `plain` answers"}
BATCHES = {
    "equal": "yes",
    "alone": "each row as alone, unlike padded batches of stock",
    "refused": "of one length",
    "": "not tried",
}


def with_processors() -> list[str]:
    """Types whose exact tests have pictures of their own processors."""
    names = {*(each.name for each in (*FAMILIES, *PICTURE_TYPES)), "granite4_vision"}
    return sorted(names | {getattr(hf, f"{reader}Config").model_type for reader in READERS})


def tables(verdicts: Mapping[str, Verdict]) -> str:
    """What stands between the marks of the page."""
    equal = {name: seen for name, seen in verdicts.items() if seen.answers == "equal"}
    others = {name: seen for name, seen in verdicts.items() if seen.answers != "equal"}
    pictures = sum("picture" in seen.inputs for seen in equal.values())
    own = with_processors()
    languages = sorted(name for name in verdicts if EXEMPT.get(name, Exempt("")).language)
    introduction = (
        f"Of the {len(verdicts)} multimodal types of transformers {version()}, {len(equal)} answer "
        f"as stock `generate` does, {pictures} of them with a picture. Each is a tiny random model "
        "of the default configuration, so that a configuration with other layers may belong into "
        f"another row. Of {', '.join(languages)} the language model alone was tried."
    )
    processors = (
        f"{len(own)} types are compared with pictures of their own processors, too: "
        f"{', '.join(own)}."
    )
    parts = [
        *wrap(introduction, 130, break_on_hyphens=False),
        "",
        "| draft tokens | equal with | batches | prompt cache | types |",
        "|---|---|---|---|---|",
        *_rows(equal),
        "",
        "Why nothing is drafted, or not everything is answered:",
        "",
        "| cause in the message | types |",
        "|---|---|",
        *_causes({name: seen for name, seen in equal.items() if seen.cause}),
        "",
        "Not answered at all:",
        "",
        "| cause | types |",
        "|---|---|",
        *_causes(others),
        "",
        *wrap(processors, 130, break_on_hyphens=False),
    ]
    return "\n".join(parts) + "\n"


def _rows(verdicts: Mapping[str, Verdict]) -> list[str]:
    """Types that can do the same, those that can do most first."""
    groups = defaultdict(list)
    for name, seen in verdicts.items():
        inputs = ", ".join(kind.replace("picture", "pictures") for kind in seen.inputs)
        cache = "yes" if seen.remembers else "of media only"
        groups[DRAFTS[seen.drafts], inputs, BATCHES[seen.batches], cache].append(name)
    order = sorted(groups, key=lambda key: (list(DRAFTS.values()).index(key[0]), -len(groups[key])))
    return [f"| {' | '.join(key)} | {', '.join(groups[key])} |" for key in order]


def _causes(verdicts: Mapping[str, Verdict]) -> list[str]:
    """Sentences without the names of classes, and the types that each is said of."""
    groups = defaultdict(list)
    for name, seen in verdicts.items():
        stock = "stock `generate` raises " if seen.answers == "stock raises" else ""
        names = rf"\b(?:{seen.kind}|\w+For(?:CausalLM|\w*Generation))\b"
        said = re.sub(names, "the model", seen.cause).replace("|", r"\|")
        groups[stock + said].append(name)
    order = sorted(groups, key=lambda said: (-len(groups[said]), said))
    return [f"| {said} | {', '.join(groups[said])} |" for said in order]


def page(text: str, verdicts: Mapping[str, Verdict]) -> str:
    """The page with new tables."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{tables(verdicts)}{END}{after}"


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(), written()))


if __name__ == "__main__":
    main()

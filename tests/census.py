"""Whether draftlens answers every multimodal type of the installed transformers as stock `generate`
does, by tiny random models.

`PYTHONPATH=.:tests python -W ignore tests/census.py --write` writes `tests/census.json` and the
tables of `docs/families.md`; with names of types only their verdicts change.
`tests/exact/test_census.py` compares the file with what it sees.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import transformers as hf
from multimodal_types import (
    LENGTHS,
    NEW,
    build,
    followed,
    noisy,
    of_row,
    pictured,
    prompts,
    stock,
    types,
)
from type_exceptions import EXEMPT, Exempt

import draftlens
from draftlens.core.stats import Clock, Stats
from draftlens.decoding.admission import NAMESPACE
from draftlens.models.adapter import Backbone
from draftlens.models.prompt_cache import PromptCache
from draftlens.request import Request
from draftlens.streaming import Stream

FILE = Path(__file__).with_suffix(".json")
COMMAND = "PYTHONPATH=.:tests python -W ignore tests/census.py --write"

QUESTION = (21, 9, 33, 5)
"""Tokens of a second turn."""


@dataclass
class Verdict:
    """What was seen of a type.

    Args:
        kind: the name of its class.
        answers: `equal` to those of stock `generate`, or why none was compared: `refused` by
            draftlens, `stock raises`, `not built`.
        drafts: whether `trees`, `chains` or `nothing` is drafted.
        inputs: what was equal, `text` and `picture`.
        batches: whether a padded batch of texts is `equal`, is answered as its rows are `alone`
            where stock's answer to the batch is not, or is `refused`.
        remembers: whether a second turn reads from the prompt cache what it shares with the first.
        cause: the sentences that say why nothing is drafted or answered.
    """

    kind: str
    answers: str = "equal"
    drafts: str = "nothing"
    inputs: tuple[str, ...] = ()
    batches: str = ""
    remembers: bool = False
    cause: str = ""


class FaultError(Exception):
    """Another answer than that of stock, or a foreign error."""


def written() -> dict[str, Verdict]:
    """The verdicts of the file."""
    return {
        name: Verdict(**{**seen, "inputs": tuple(seen["inputs"])})
        for name, seen in json.loads(FILE.read_text())["types"].items()
    }


def version() -> str:
    """The version of transformers that the file is of."""
    number: str = json.loads(FILE.read_text())["transformers"]
    return number


def write(verdicts: Mapping[str, Verdict]) -> None:
    """Write the file, sorted by type."""
    seen = {name: asdict(verdicts[name]) for name in sorted(verdicts)}
    content = {"transformers": hf.__version__, "types": seen}
    FILE.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def tried(name: str) -> Verdict:
    """Compare draftlens's answers of a type with those of stock `generate`.

    Raises:
        FaultError: they differ, or an exception is not one of draftlens's.
    """
    verdict = Verdict(types()[name])
    try:
        model = build(name)
    except Exception as error:
        verdict.answers, verdict.cause = "not built", _sentence(error)
        return verdict
    try:
        backbone = Backbone(model)
    except draftlens.DraftlensError as error:
        verdict.answers, verdict.cause = "refused", str(error)
        return verdict
    except Exception as error:
        raise FaultError(f"{name}: the adapter raises {_sentence(error)}") from error
    drafts = "chains" if getattr(backbone, "chains_only", "") else "trees"
    verdict.drafts = "nothing" if backbone.plain_only else drafts
    verdict.cause = re.sub(r" \(they differ by \S+\)", "", str(backbone.plain_only))
    raised = _answers_texts(name, backbone, verdict)
    seen = pictured(name, model)
    if seen is not None:
        try:
            _compare_batch(name, backbone, *seen, verdict)
            verdict.inputs += ("picture",)
        except draftlens.DraftlensError as error:
            verdict.cause = "; ".join(filter(None, (verdict.cause, str(error))))
    if not verdict.inputs:
        verdict.answers = "stock raises" if raised else "refused"
        verdict.cause = raised or verdict.cause
    return verdict


def _answers_texts(name: str, backbone: Backbone, verdict: Verdict) -> str:
    """Compare two rows of text, and a second turn of one of them.

    Returns:
        What stock `generate` raises; empty if it answers.
    """
    given = prompts(backbone.model)
    try:
        expected = stock(backbone.model, given)
    except Exception as error:
        return _sentence(error)
    verdict.batches = _compare_batch(name, backbone, given, expected, verdict)
    verdict.inputs = ("text",)
    verdict.remembers = _second_turn(name, backbone, of_row(given, 0), verdict)
    return ""


def _compare_batch(
    name: str,
    backbone: Backbone,
    given: Mapping[str, Any],
    expected: list[list[int]],
    verdict: Verdict,
) -> str:
    """Compare two rows together and, where stock's answers change by that, alone; what was equal,
    as `Verdict.batches` has it."""
    try:
        _compare(name, backbone, given, expected, verdict)
        return "equal"
    except (draftlens.DraftlensError, FaultError) as problem:
        own = [of_row(given, row) for row in range(len(LENGTHS))]
        alone = [stock(backbone.model, row)[0] for row in own]
        if isinstance(problem, draftlens.DraftlensError):
            for row, answer in zip(own, alone, strict=True):
                _compare(name, backbone, row, [answer], verdict)
            verdict.cause = str(problem)
            return "refused"
        if alone == expected:
            raise
    _compare(name, backbone, given, alone, verdict)
    return "alone"


def _compare(
    name: str,
    backbone: Backbone,
    given: Mapping[str, Any],
    expected: list[list[int]],
    verdict: Verdict,
) -> None:
    drafted = accepted = 0
    for options in _methods(name, backbone, verdict):
        try:
            result = draftlens.generate(backbone.model, given, max_new_tokens=NEW, **options)
        except draftlens.DraftlensError:
            raise
        except Exception as error:
            raise FaultError(
                f"{name}: foreign error, {_sentence(error)} {options['method']}"
            ) from error
        if result.tokens != expected:
            raise FaultError(f"{name}: {options['method']} {result.tokens} instead of {expected}")
        drafted += result.stats.drafted
        accepted += result.stats.accepted
    if verdict.drafts != "nothing" and not 0 < accepted < drafted:
        raise FaultError(
            f"{name}: {accepted} of {drafted} draft tokens were right, which shows nothing"
        )


def _methods(name: str, backbone: Backbone, verdict: Verdict) -> list[dict[str, Any]]:
    if verdict.drafts == "nothing":
        return [{"method": "plain"}]
    draft = _draft_of(name, backbone.model)
    chains = {"draft": draft, "method": {"num_speculative_tokens": 4}}
    trees = [{"draft": draft, "method": {"tree": "eagle"}}] if verdict.drafts == "trees" else []
    return [{"method": "lookup"}, chains, *trees]


@lru_cache(maxsize=1)
def _draft_of(name: str, model: Any) -> Any:
    return noisy(model, EXEMPT.get(name, Exempt("")).noise)


def _second_turn(name: str, backbone: Backbone, given: Mapping[str, Any], verdict: Verdict) -> bool:
    """Ask a second question after the answer to the first, with a prompt cache; whether it is
    used."""
    backbone.prompt_cache = PromptCache("50MB")
    method = "plain" if verdict.drafts == "nothing" else "lookup"
    for _ in range(2):
        request = Request(
            given,
            method=method,
            options={"do_sample": False, "max_new_tokens": NEW},
            extras={NAMESPACE: ""},
        )
        try:
            result = Stream(backbone, None, request, Clock(Stats())).run()
        except Exception as error:
            raise FaultError(f"{name}: foreign error in a turn, {_sentence(error)}") from error
        (answer,) = stock(backbone.model, given)
        if result.tokens != [answer]:
            raise FaultError(f"{name}: a turn with {method} is {result.tokens} instead of {answer}")
        given = followed(given, [*answer, *QUESTION])
    return result.stats.cached_tokens > 0


def _sentence(error: Exception) -> str:
    """What an exception is and the first line of what it says."""
    return f"{type(error).__name__}: {(str(error).strip() or 'without a text').splitlines()[0]}"


def main(arguments: list[str]) -> None:
    """Print the verdicts of the named types, or of all; with `--write` into the file."""
    names = [name for name in arguments if name != "--write"] or list(types())
    verdicts = {}
    for name in names:
        try:
            verdicts[name] = tried(name)
            print(name, verdicts[name])
        except FaultError as fault:
            print("FAULT", fault)
    if "--write" in arguments:
        import families_page

        write({**written(), **verdicts})
        families_page.main()


if __name__ == "__main__":
    hf.logging.set_verbosity_error()
    main(sys.argv[1:])

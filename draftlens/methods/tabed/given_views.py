"""Further views of a prompt: made by the caller, or of the messages of the prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from draftlens.core.errors import InputError
from draftlens.decoding.plan import ExtraSource
from draftlens.media.conversation import ChatSource
from draftlens.models.checks import check_tokens

VIEWS_EXTRA = "views"  # The name of these views among the extras of a call.

# The draft's inputs for one view, as its processor's output, one row per conversation.
MakeView = Callable[[ChatSource], Mapping[str, Any]]


def read_views(
    makers: Mapping[str, MakeView], given: Any, source: ExtraSource
) -> dict[str, Callable[[], Mapping[str, Any]]]:
    """What returns the draft's inputs of each view that is given, or can be made of the messages.
    The drafter calls it after the first token, so that captions do not delay that.

    Raises:
        InputError: views are given that the method does not read, in another form, or of another
            number of rows.
    """
    given = {} if given is None else given
    _check_form(given)
    unknown = sorted(given.keys() - makers.keys())
    if unknown and not makers:
        raise InputError(
            f"draft_inputs hold views ({', '.join(unknown)}), and the method reads its prompt in "
            "one way only: leave them out"
        )
    if unknown:
        raise InputError(
            f"draft_inputs hold views that the method does not read: {', '.join(unknown)}; it "
            f"reads {', '.join(sorted(makers))}"
        )
    for name, inputs in given.items():
        _check_view_rows(f"draft_inputs['views'][{name!r}]", inputs, source.num_rows)
    makers_of_inputs: dict[str, Callable[[], Mapping[str, Any]]] = {}
    for name, make in makers.items():
        if name in given:
            makers_of_inputs[name] = partial(dict, given[name])
        elif source.chat is not None:
            makers_of_inputs[name] = partial(make, source.chat)
    return makers_of_inputs


def _check_form(given: Any) -> None:
    if not isinstance(given, Mapping):
        raise InputError(
            "draft_inputs['views'] map names of views to the processor's output for them, "
            f"not {type(given).__name__}"
        )
    for name, inputs in given.items():
        if not isinstance(inputs, Mapping):
            raise InputError(
                f"draft_inputs['views'][{name!r}] is the output of a processor, "
                f"not {type(inputs).__name__}"
            )


def _check_view_rows(described: str, inputs: Mapping[str, Any], num_rows: int) -> None:
    check_tokens(described, inputs)
    ids = inputs.get("input_ids")
    num_given = 0 if ids is None else len(ids)
    if num_given != num_rows:
        raise InputError(f"{described} must hold input_ids for {num_rows} rows, not {num_given}")

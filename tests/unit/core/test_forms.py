"""Forms and the processor that keeps them."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
import torch
from families import VOCAB, tokenizer

from draftlens.core.errors import ConfigError
from draftlens.core.forms import Form, FormProcessor, form_of

EOS = tokenizer().eos_token_id
RECORD = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 3}, "count": {"enum": [3, 17]}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
PROMPT = [5, 6, 7]


def processor(form: Any, eos: tuple[int, ...] = (EOS,)) -> FormProcessor:
    """Of answers after three ids."""
    return FormProcessor(form_of(form), tokenizer()).bound(len(PROMPT), eos)


def allowed(of: FormProcessor, *texts: str, size: int = VOCAB, row: int = 0) -> list[set[str]]:
    """The tokens that may follow each text."""
    found = []
    for text in texts:
        ids = torch.tensor([PROMPT + tokenizer().encode(text)])
        scores = of.of_row(row)(ids, torch.zeros(1, size))[0]
        tokens = (scores == 0).nonzero().flatten().tolist()
        found.append({tokenizer().decode([token]) for token in tokens})
    return found


def test_what_may_follow() -> None:
    """In any order of the histories, as a tree asks for them."""
    of = processor(Form.regex("(ab|cd)[0-9]"))
    digits = set("0123456789")
    assert allowed(of, "", "ab", "a", "c", "cd", "ab7", "") == [
        {"a", "c", "ab", "cd"} & allowed(of, "")[0],
        digits,
        {"b"},
        {"d"},
        digits,
        {"</s>"},
        allowed(of, "")[0],
    ]
    assert {"a", "c"} <= allowed(of, "")[0]
    numbers = processor(Form.regex("[0-9]{3}"))
    assert allowed(numbers, "123", "12", "1", "12") == [{"</s>"}, digits, digits, digits]


def test_after_an_answer_of_another_form_everything_may_follow() -> None:
    """Stock `generate` processes rows that have ended, too; and draft tokens may be wrong."""
    of = processor(Form.regex("ab"))
    assert len(allowed(of, "x")[0]) > 90
    ended = torch.tensor([[*PROMPT, *tokenizer().encode("ab"), EOS, 0]])
    assert (of(ended, torch.zeros(1, VOCAB)) == 0).all()
    wide = torch.tensor([[*PROMPT, VOCAB + 3]])
    assert (of(wide, torch.zeros(1, VOCAB)) == 0).all()
    assert allowed(of, "a") == [{"b"}]


def test_rows_have_positions_of_their_own() -> None:
    of = processor(Form.choice(["abc", "acb"]))
    ids = [PROMPT + tokenizer().encode(text) for text in ("a", "a")]
    scores = of(torch.tensor(ids), torch.zeros(2, VOCAB))
    assert torch.equal(scores[0], scores[1])
    assert set(of._positions) == {0, 1}


def test_scores_of_another_width_than_the_vocabulary() -> None:
    of = processor(Form.regex("b"))
    assert allowed(of, "", size=VOCAB + 9) == [{"b"}]
    first = tokenizer().convert_tokens_to_ids("b")
    assert allowed(of, "", size=first + 1) == [{"b"}]


def test_the_end_may_come_where_the_form_is_complete() -> None:
    """Also if an id that ends the answer is a token of text."""
    letter = tokenizer().convert_tokens_to_ids("b")
    of = processor(Form.regex("ab*"), (EOS, letter))
    assert "b" not in allowed(of, "")[0]
    assert allowed(of, "a")[0] >= {"b", "</s>"}
    assert "b" not in allowed(processor(Form.regex("ab"), (EOS, letter)), "a")[0]
    other = processor(Form.regex("a"), (letter,))
    assert allowed(other, "a") == [{"b"}]


def test_forced_tokens() -> None:
    """Up to the first choice; at the end of the form with the end of the answer."""
    of = processor(RECORD)
    assert tokenizer().decode(of.forced(0, [])) == '{"name": "'
    after = tokenizer().encode('{"name": "x"')
    assert tokenizer().decode(of.forced(0, after)) == ', "count": '
    end = of.forced(0, tokenizer().encode('{"name": "x", "count": 1'))
    assert (tokenizer().decode(end[:-1]), end[-1]) == ("7}", EOS)
    assert of.forced(0, tokenizer().encode('{"name": "')) == []
    assert of.forced(0, tokenizer().encode("no")) == []
    assert of.forced(0, [*after, EOS]) == []


def test_the_tokenizers_own_end_is_forced_first() -> None:
    assert processor(Form.regex("ab"), (EOS + 1, EOS)).forced(0, [])[-1] == EOS


def test_layouts() -> None:
    for any_layout, is_allowed in ((False, False), (True, True)):
        of = processor(Form.json(RECORD, any_layout=any_layout))
        assert ("\n" in allowed(of, "{")[0]) is is_allowed


def test_a_pydantic_model_and_a_schema_are_forms() -> None:
    from pydantic import BaseModel

    class Thing(BaseModel):
        name: str

    class Box(BaseModel, extra="allow"):
        things: list[Thing]

    schema = Box.model_json_schema()
    schema["$defs"]["Thing"]["additionalProperties"] = False  # the model ignores further ones
    assert schema["additionalProperties"] is True
    assert form_of(Box) == Form.json(schema)
    assert form_of(RECORD) == Form.json(json.loads(json.dumps(RECORD)))
    assert form_of(Form.regex("a")) == Form.regex("a")


def test_texts_of_a_choice_are_taken_as_they_are() -> None:
    texts = ['say "a"', "a\\b", "x\ny", "a|b"]
    of = processor(Form.choice(texts))
    for text in texts:
        ids = tokenizer().encode(text)
        assert of.forced(0, [*ids]) == [EOS]


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda: form_of("abc"), "Form.regex"),
        (lambda: form_of(3), "must be a JSON schema or a pydantic model, not 3"),
        (lambda: Form.json({"enum": {1}}), "no JSON schema"),
        (lambda: Form.regex(""), "the expression of a form"),
        (lambda: Form.choice([]), "list of texts"),
        (lambda: Form.choice("ab"), "list of texts"),
        (lambda: Form.choice(["a", ""]), "the choice of a form"),
        (lambda: Form.lark("nothing"), "Expected"),
        (lambda: processor({"enum": []}), "Unsatisfiable"),
        (lambda: processor({"type": "strin"}), "Invalid type"),
        (lambda: processor({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (lambda: processor(Form.regex("(")), "unclosed group"),
        (lambda: processor(RECORD, ()), "eos_token_id"),
        (lambda: FormProcessor(Form.regex("a"), None), "tokenizer"),
        (lambda: FormProcessor(Form.regex("a"), object()), "fast tokenizer"),
    ],
)
def test_refusals(make: Any, cause: str) -> None:
    with pytest.raises(ConfigError, match=cause) as caught:
        make()
    assert "<state>" not in str(caught.value)


def test_lenient_schemas_ignore_what_cannot_be_enforced() -> None:
    form = Form.json({"type": "array", "uniqueItems": True}, lenient=True)
    assert "[" in allowed(processor(form), "")[0]


def test_a_copy_in_another_process() -> None:
    """A draft may run there."""
    of = pickle.loads(pickle.dumps(processor(RECORD)))
    assert allowed(of, '{"name') == [{'"'}]
    assert pickle.loads(pickle.dumps(FormProcessor(Form.regex("a"), tokenizer()))) is not None


def test_a_guard_is_around_each_row() -> None:
    calls = []

    def guard(masked: Any) -> Any:
        calls.append(masked)
        return lambda ids, scores: scores + 1

    of = FormProcessor(Form.regex("a"), tokenizer()).guarded(guard).bound(3, (EOS,))
    assert (of(torch.tensor([PROMPT]), torch.zeros(1, VOCAB)) == 1).all()
    assert len(calls) == 1
    assert of.forced(0, [])


def test_a_form_that_becomes_too_complex_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    of = processor(Form.regex("a"))
    position = of._position(0)

    class Failed:
        """A matcher in its state after an error."""

        def try_consume_tokens(self, tokens: list[int]) -> int:
            return len(tokens)

        def compute_bitmask(self) -> bytes:
            return bytes(26)

        def is_error(self) -> bool:
            return True

        def get_error(self) -> str:
            return "too many items\n<state>long</state>"

    monkeypatch.setattr(position, "_matcher", Failed())
    with pytest.raises(ConfigError, match=r"the form is too complex: too many items$"):
        of(torch.tensor([PROMPT]), torch.zeros(1, VOCAB))

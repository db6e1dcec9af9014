"""Random forms, what stock `generate` answers in them, and whether an answer has its form."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import jsonschema_rs
import torch
from families import tokenizer
from hypothesis import strategies as st
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from transformers import LogitsProcessor

from draftlens.core.forms import Form, FormProcessor

FormText = tuple[str, str]
"""The kind of a form and what it is made of, as a text."""


@cache
def form_of_text(form: FormText) -> Form:
    """The form."""
    kind, text = form
    if kind == "schema":
        return Form.json(json.loads(text))
    if kind == "any layout":
        return Form.json(json.loads(text), any_layout=True)
    if kind == "choice":
        return Form.choice(json.loads(text))
    return Form.regex(text) if kind == "regex" else Form.lark(text)


def processor_of(form: FormText) -> FormProcessor:
    """The library's own processor, for a call of stock `generate` that drafts."""
    return FormProcessor(form_of_text(form), tokenizer())


class StockForm(LogitsProcessor):
    """A processor that reads the whole answer with a new matcher for each token, a slow twin of
    `FormProcessor`."""

    def __init__(
        self, grammar: str, prompt_length: int, eos: Sequence[int], words: Any = None
    ) -> None:
        self.grammar = grammar
        self.prompt_length = prompt_length
        self.eos = list(eos)
        self.words = from_tokenizer(words or tokenizer())

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores of minus infinity for all tokens that are not allowed."""
        scores = scores.clone()
        for row, ids in enumerate(input_ids[:, self.prompt_length :].tolist()):
            matcher = LLMatcher(self.words, self.grammar, log_level=0)
            size = self.words.vocab_size
            if any(token >= size or matcher.try_consume_tokens([token]) == 0 for token in ids):
                continue
            allowed = [bias > 0 for bias in matcher.compute_logit_bias()[:size]]
            allowed += [False] * (scores.shape[-1] - size)
            may_end = allowed[self.words.eos_token]
            allowed[self.words.eos_token] = False
            for token in self.eos:
                allowed[token] = may_end
            scores[row, ~torch.tensor(allowed)] = -torch.inf
        return scores


def has_form(form: FormText, tokens: Sequence[int]) -> bool:
    """Whether an answer without its end has the form, by other libraries than the product's where
    there is one."""
    kind, text = form
    answer = tokenizer().decode(tokens)
    if kind == "choice":
        return answer in json.loads(text)
    if kind == "regex":
        return re.fullmatch(text, answer) is not None
    if kind in ("schema", "any layout"):
        schema = json.loads(text)
        value = json.loads(answer)
        laid_out = kind == "any layout" or json.dumps(value, ensure_ascii=False) == answer
        return laid_out and bool(jsonschema_rs.is_valid(schema, value))
    matcher = LLMatcher(from_tokenizer(tokenizer()), form_of_text(form).grammar)
    return matcher.consume_tokens(list(tokens)) and matcher.is_accepting()


NAMES = ("colour", "id", "number of things", "shape", "x")
TEXTS = ("circle", "circular", "green", "x", "no", "none", 'say "a"', "b c\n")


def _objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(st.sampled_from(NAMES), values, min_size=1, max_size=3)
    return st.builds(
        lambda named, some: {
            "type": "object",
            "properties": named,
            "required": list(named)[: len(named) - some],
            "additionalProperties": False,
        },
        properties,
        st.integers(0, 1),
    )


def _arrays(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda item, least, more: {
            "type": "array",
            "items": item,
            "minItems": least,
            "maxItems": least + more,
        },
        values,
        st.integers(0, 2),
        st.integers(0, 2),
    )


scalars = st.one_of(
    st.sampled_from(({"type": "boolean"}, {"type": "null"}, {"type": "integer"})),
    st.builds(
        lambda least: {"type": "integer", "minimum": least, "maximum": least + 40},
        st.integers(-9, 99),
    ),
    st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4, unique=True).map(
        lambda texts: {"enum": texts}
    ),
    st.integers(1, 6).map(lambda most: {"type": "string", "maxLength": most}),
    st.sampled_from(("[a-c]{2}", "[0-9]{2}-[a-z]+", "a?b*c")).map(
        lambda pattern: {"type": "string", "pattern": f"^{pattern}$"}
    ),
    st.sampled_from(TEXTS).map(lambda text: {"const": text}),
)
schemas = st.recursive(
    scalars,
    lambda values: st.one_of(
        _objects(values),
        _objects(values),
        _arrays(values),
        st.lists(values, min_size=2, max_size=3).map(lambda parts: {"anyOf": parts}),
    ),
    max_leaves=5,
)
atoms = st.sampled_from(("a", "bc", "[a-f]", "[0-9]", "(ab|cd|abe)", "(the |a )", "[A-Z][a-z]"))
expressions = st.lists(
    st.tuples(atoms, st.sampled_from(("", "", "?", "{2}", "{1,3}", "+"))), min_size=1, max_size=5
).map(lambda parts: "".join(f"({atom}){times}" for atom, times in parts))
grammars = st.builds(
    lambda item, mark, least: (
        f"start: item{{{least},4}} end\n"
        f'item: {item} "{mark}" | "(" item "{mark}" item ")"\n'
        'end: "!" | "stop"\nWORD: /[a-z]{1,3}/\nNUMBER: /[1-9][0-9]?/'
    ),
    st.sampled_from(("WORD", "NUMBER", "(WORD | NUMBER)", '"fixed text"')),
    st.sampled_from((",", "; ", " and ")),
    st.integers(0, 2),
)
forms: st.SearchStrategy[FormText] = st.one_of(
    schemas.map(lambda schema: ("schema", json.dumps(schema))),
    schemas.map(lambda schema: ("any layout", json.dumps(schema))),
    expressions.map(lambda pattern: ("regex", pattern)),
    st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4).map(
        lambda texts: ("choice", json.dumps(texts))
    ),
    grammars.map(lambda grammar: ("lark", grammar)),
)

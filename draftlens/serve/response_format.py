"""Forms of answers as OpenAI's clients and those of vLLM ask for them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from draftlens.core.errors import ConfigError
from draftlens.core.forms import Form
from draftlens.core.text import shortened
from draftlens.serve.errors import ApiError


class JsonSchema(BaseModel):
    """A schema with a name. Unless it is strict, what cannot be enforced of it is ignored."""

    name: str = ""
    schema_: dict[str, Any] | bool = Field(default_factory=dict, alias="schema")
    strict: bool | None = None


class TextFormat(BaseModel):
    type: Literal["text"]

    @property
    def forms(self) -> list[Form]:
        return []


class ObjectFormat(BaseModel):
    type: Literal["json_object"]

    @property
    def forms(self) -> list[Form]:
        return [Form.json()]


class SchemaFormat(BaseModel):
    type: Literal["json_schema"]
    json_schema: JsonSchema

    @property
    def forms(self) -> list[Form]:
        return [Form.json(self.json_schema.schema_, lenient=not self.json_schema.strict)]


ResponseFormat = Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")]


class StructuredOutputs(BaseModel):
    """The forms of vLLM, of which `guided_json` and the like are the earlier names."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    @property
    def forms(self) -> list[Form]:
        forms = [] if self.json_ is None else [_json_form(self.json_)]
        forms += [] if self.regex is None else [Form.regex(self.regex)]
        forms += [] if self.choice is None else [Form.choice(self.choice)]
        forms += [] if self.grammar is None else [Form.lark(self.grammar)]
        return [*forms, Form.json()] if self.json_object else forms


def _json_form(schema: dict[str, Any] | str) -> Form:
    """vLLM takes the schema as a text, too."""
    return Form.json(json.loads(schema) if isinstance(schema, str) else schema, lenient=True)


FORMS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
"""Fields of a request that name a form."""


def one_form(
    response_format: TextFormat | ObjectFormat | SchemaFormat | None = None,
    structured_outputs: StructuredOutputs | None = None,
    **guided: Any,
) -> Form | None:
    """The form that the fields of a request name; None for a text of any form.

    Raises:
        ApiError: they name several, or one that is wrong.
    """
    names = {name.removeprefix("guided_"): value for name, value in guided.items()}
    earlier = StructuredOutputs(**names)
    try:
        given = (response_format, structured_outputs, earlier)
        forms = [form for each in given if each is not None for form in each.forms]
    except (ConfigError, ValueError) as error:
        raise _refusal(shortened(str(error))) from None
    if len(forms) > 1:
        raise _refusal("an answer has one form, and the request names several")
    return forms[0] if forms else None


def _refusal(cause: str) -> ApiError:
    return ApiError(400, cause, "response_format", "invalid_value")

"""The description of the server in the form of OpenAPI."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from draftlens.serve.protocol import ChatRequest, CompletionRequest, GenerationRequest
from draftlens.serve.responses_api import ResponsesRequest

REFERENCE = "#/components/schemas/{model}"


def body_of(kind: type[GenerationRequest]) -> dict[str, Any]:
    """The part of a route about its body, which the route reads itself."""
    reference = {"$ref": REFERENCE.format(model=kind.__name__)}
    content = {"application/json": {"schema": reference}}
    return {"requestBody": {"content": content, "required": True}}


def description(app: FastAPI) -> dict[str, Any]:
    """All routes, and the forms of their bodies."""
    whole = get_openapi(title=app.title, version=app.version, routes=app.routes)
    kinds = (ChatRequest, CompletionRequest, ResponsesRequest)
    _, forms = models_json_schema([(kind, "validation") for kind in kinds], ref_template=REFERENCE)
    whole.setdefault("components", {}).setdefault("schemas", {}).update(forms["$defs"])
    return whole

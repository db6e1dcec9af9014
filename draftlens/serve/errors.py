"""Errors as OpenAI's clients expect them. No text of a decoder, path or address is in them."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse

from draftlens.core.errors import ConfigError, DraftlensError, InputError, MediaError
from draftlens.scheduling import AnswerError, QueueFullError

RETRY_SECONDS = 2

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "unprocessable_entity_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
}


class ApiError(Exception):
    """An answer with an error status.

    Args:
        message: one sentence.
        param: the field of the request that is to blame.
        code: a word for programs.
    """

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, "server_error"),
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self, headers: dict[str, str] | None = None) -> JSONResponse:
        headers = dict(headers or {})
        if self.status in (429, 503):
            headers["Retry-After"] = str(RETRY_SECONDS)
        if self.status == 408:  # the rest of the body is not read
            headers["Connection"] = "close"
        return JSONResponse(self.body(), self.status, headers)


def api_error(error: BaseException) -> ApiError:
    """The error that a client gets to see."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFullError):
        return ApiError(429, "too many requests wait: try again later", code="queue_full")
    if isinstance(error, AnswerError):
        return ApiError(503, f"{error}: send the request again", code="answer_lost")
    if isinstance(error, MediaError):
        return ApiError(422, "a picture or clip cannot be read", "messages")
    # Sentences with a cause quote other libraries.
    if isinstance(error, (ConfigError, InputError)) and error.__cause__ is None:
        return ApiError(400, str(error))
    if isinstance(error, DraftlensError):
        return ApiError(400, "the model's processor refuses the request", "messages")
    return ApiError(500, "the request failed", code="internal_error")

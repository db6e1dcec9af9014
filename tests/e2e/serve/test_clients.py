"""Other clients than OpenAI's, and requests that a description of the server allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import hypothesis
import pytest
import schemathesis
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI

import draftlens
from draftlens.scheduling import SchedulerLimits
from draftlens.serve.options import ServeOptions
from tests.e2e.serve.running import CHATS, NEW, PICTURE, WAIT, Running, image, serving, text

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_langchain(server: Running, stock: Callable[..., str]) -> None:
    chat = ChatOpenAI(
        model="embedded", base_url=f"{server.url}/v1", api_key="none", max_completion_tokens=NEW
    )
    message = HumanMessage([image(PICTURE), text("Describe the image.")])
    answer = chat.invoke([message])
    assert answer.content == stock("picture")
    assert answer.usage_metadata["output_tokens"] == NEW
    assert answer.response_metadata["finish_reason"] == "length"
    streamed = list(chat.stream(CHATS["words"], stream_usage=True, temperature=0))
    assert "".join(str(chunk.content) for chunk in streamed) == stock("words")
    assert sum((chunk.usage_metadata or {}).get("output_tokens", 0) for chunk in streamed) == NEW
    assert chat.bind(stop=["nothing of it"]).batch([CHATS["words"]] * 2)[1].content == stock(
        "words"
    )


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_no_request_is_an_error_of_the_server(
    engine: draftlens.Engine, mode: schemathesis.GenerationMode
) -> None:
    """Requests that the description of the server allows, and ones that it does not."""
    options = ServeOptions(batch=SchedulerLimits(max_rows=8), max_new_tokens=4)
    with serving(engine, options) as running:
        description = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
        seen = Counter[int]()

        def send(case: schemathesis.Case) -> None:
            response = case.call(timeout=WAIT)
            seen[response.status_code] += 1
            assert response.status_code < 500, (case.as_curl_command(), response.text)

        for found in description.get_all_operations():
            operation = found.ok()
            if operation.method != "post" and mode is schemathesis.GenerationMode.NEGATIVE:
                continue  # nothing in it can be wrong
            cases = operation.as_strategy(generation_mode=mode)
            hypothesis.settings(
                max_examples=12,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[hypothesis.Phase.generate],
                suppress_health_check=list(hypothesis.HealthCheck),
            )(hypothesis.given(cases)(send))()
        assert seen[400]
        assert seen[200] or mode is schemathesis.GenerationMode.NEGATIVE

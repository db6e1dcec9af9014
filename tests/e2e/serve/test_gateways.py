"""What gateways read: gauges under vLLM's names, and spans of OpenTelemetry."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

import draftlens
from draftlens.scheduling import SchedulerLimits
from draftlens.serve import tracing
from draftlens.serve.options import ServeOptions
from tests.e2e.serve.running import CHATS, NEW, Running, ask, serving, until

GAUGES = ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc")


def families_of(text: str) -> dict[str, Any]:
    """The metrics of a text, by name."""
    return {family.name: family for family in text_string_to_metric_families(text)}


def gauges(url: str, model: str) -> tuple[float, ...]:
    """The gauges of the model server protocol, as the endpoint picker scrapes them."""
    found = families_of(httpx.get(f"{url}/metrics").text)
    values = []
    for name in GAUGES:
        family = found[f"vllm:{name}"]
        assert family.type == "gauge"
        (sample,) = family.samples
        assert sample.labels == {"model_name": model, "engine": "0"}
        values.append(sample.value)
    return tuple(values)


def test_gauges_of_a_busy_server(engine: draftlens.Engine) -> None:
    options = ServeOptions(model="shapes", batch=SchedulerLimits(max_rows=1, max_cache_bytes=2**26))
    with serving(engine, options) as running, ThreadPoolExecutor(3) as pool:
        assert gauges(running.url, "shapes") == (0, 0, 0)
        client = running.client()
        given = {"model": "shapes", "max_tokens": 150, "extra_body": {"ignore_eos": True}}
        answers = [pool.submit(ask, client, "words", **given) for _ in range(3)]
        until(lambda: gauges(running.url, "shapes")[0] > 0)
        waiting, served, share = gauges(running.url, "shapes")
        assert 1 <= waiting <= 2
        assert served == 1
        job = next(iter(running.scheduler._batches[0].jobs))
        assert share == running.scheduler._bytes(1, job.length) / 2**26
        assert 0 < share < 1
        for answer in answers:
            assert answer.result().usage.completion_tokens == 150
        until(lambda: gauges(running.url, "shapes") == (0, 0, 0))


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Spans of servers that begin after this."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_a_span_of_each_answer(engine: draftlens.Engine, spans: InMemorySpanExporter) -> None:
    with serving(engine, ServeOptions()) as running:
        client = running.client(default_headers={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})
        whole = ask(client, "picture", seed=5, temperature=0.5, n=2, stop=["nothing"])
        chunks = list(ask(client, "words", stream=True, stream_options={"include_usage": True}))
        httpx.get(f"{running.url}/metrics")
        running.post(json={"messages": []})
    first, second, refused = [
        span
        for span in spans.get_finished_spans()
        if span.instrumentation_scope.name == "draftlens"  # FastAPI makes spans, too
    ]
    assert first.name == second.name == "chat embedded"
    assert first.kind is trace.SpanKind.SERVER
    assert f"{first.context.trace_id:032x}" == TRACE
    known = dict(first.attributes)
    assert known["gen_ai.operation.name"] == "chat"
    assert known["gen_ai.provider.name"] == "draftlens"
    assert known["gen_ai.request.model"] == known["gen_ai.response.model"] == "embedded"
    assert known["gen_ai.request.seed"] == 5
    assert known["gen_ai.request.temperature"] == 0.5
    assert known["gen_ai.request.choice.count"] == 2
    assert known["gen_ai.request.max_tokens"] == NEW
    assert known["gen_ai.request.stop_sequences"] == ("nothing",)
    assert known["gen_ai.response.finish_reasons"] == tuple(
        choice.finish_reason for choice in whole.choices
    )
    assert known["gen_ai.usage.input_tokens"] == whole.usage.prompt_tokens
    assert known["gen_ai.usage.output_tokens"] == whole.usage.completion_tokens
    assert 0 < known["gen_ai.latency.time_to_first_token"] <= known["gen_ai.latency.e2e"]
    assert known["draftlens.lossless"] is True
    assert known["http.response.status_code"] == 200
    assert second.attributes["gen_ai.usage.output_tokens"] == chunks[-1].usage.completion_tokens
    # The span of a stream ends with its last event.
    assert second.end_time - second.start_time > 1e9 * second.attributes["gen_ai.latency.e2e"] / 2
    assert refused.attributes["error.type"] == "ApiError"
    assert refused.attributes["http.response.status_code"] == 400
    text = str([span.to_json() for span in (first, second)])
    assert CHATS["words"][0]["content"] not in text
    assert str(whole.choices[0].message.content) not in text


def test_nothing_is_traced_without_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracing.configured_tracer() is None
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    assert tracing.configured_tracer() is None
    assert "opentelemetry.trace" not in sys.modules


def test_a_server_without_a_provider_has_no_layer_for_it(
    server: Running, client: openai.OpenAI
) -> None:
    layers: list[Any] = [layer.cls for layer in server.app.user_middleware]
    assert tracing.Tracing not in layers
    assert client.models.list().data

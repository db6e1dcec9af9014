"""Figures for Prometheus, with vLLM's names for what gateways and its dashboards read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from draftlens.scheduling.jobs import Counters

if TYPE_CHECKING:
    from draftlens.serve.answering import Answer, Answering

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


class Metrics:
    """The figures of one server: those of its schedulers, and those of its responses."""

    def __init__(self, answerings: Sequence[Answering]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_SchedulerFigures(answerings))
        self._requests = Counter(
            "draftlens_http_requests", "Requests.", ["status"], registry=self._registry
        )
        self._finished = Counter(
            "draftlens_answers", "Choices that ended.", ["reason"], registry=self._registry
        )
        self._waiting = self._histogram(
            "draftlens_queue_seconds",
            "Seconds from the processors' output to the prompt's reading.",
        )
        self._first = self._histogram(
            "draftlens_time_to_first_token_seconds", "Seconds from the request to the first token."
        )
        self._whole = self._histogram(
            "draftlens_answer_seconds", "Seconds from the request to the last token."
        )
        self._token = Histogram(
            "draftlens_time_per_output_token_seconds",
            "Seconds between two tokens of an answer, on average.",
            buckets=_TOKEN_SECONDS,
            registry=self._registry,
        )

    def record(self, answer: Answer) -> None:
        """Count an answer that has ended."""
        stats = answer.stream.stats
        job = answer.stream.job
        self._waiting.observe(max(job.admitted - job.arrived, 0.0))
        self._first.observe(stats.ttft)
        self._whole.observe(stats.e2e)
        tokens = (stats.emitted - stats.first) / max(len(answer.rows), 1)
        if tokens > 0:
            self._token.observe(stats.decode / tokens)
        for row in answer.rows:
            self._finished.labels(row.finish_reason or "stop").inc()

    def count_request(self, status: int) -> None:
        self._requests.labels(str(status)).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _histogram(self, name: str, help_text: str) -> Histogram:
        return Histogram(name, help_text, buckets=_SECONDS, registry=self._registry)


class _SchedulerFigures(Collector):
    """Reads the counters of schedulers whenever they are asked for. Figures without the name of a
    model are sums."""

    def __init__(self, answerings: Sequence[Answering]) -> None:
        self._schedulers = {each.model: each.scheduler for each in answerings}
        self._prompt_caches = [each.prompt_cache for each in answerings]

    def collect(self) -> Iterator[Metric]:
        schedulers = list(self._schedulers.values())
        counters = Counters.total([each.counters for each in schedulers])
        remembered = sum(cache.nbytes for cache in self._prompt_caches if cache is not None)
        num_waiting = sum(each.num_waiting for each in schedulers)
        num_rows = sum(each.num_rows for each in schedulers)
        max_rows = sum(each.limits.max_rows for each in schedulers)
        for name, help_text, value in (
            ("draftlens_requests_waiting", "Requests that wait.", num_waiting),
            ("draftlens_rows_running", "Rows that are answered.", num_rows),
            ("draftlens_rows_max", "Most rows at a time.", max_rows),
            ("draftlens_cache_bytes", "Keys and values.", counters.cache_bytes),
            ("draftlens_prompt_cache_bytes", "Remembered prompts and media.", remembered),
        ):
            yield GaugeMetricFamily(name, help_text, value)
        yield from self._of_models()
        for name, help_text, number in (
            ("draftlens_prompt_tokens", "Tokens of prompts.", counters.prompt_tokens),
            (
                "draftlens_prompt_cached_tokens",
                "Tokens of prompts that came from the prompt cache.",
                counters.cached_tokens,
            ),
            ("vllm:prefix_cache_queries", "Tokens of prompts.", counters.prompt_tokens),
            (
                "vllm:prefix_cache_hits",
                "Tokens of prompts that came from the prompt cache.",
                counters.cached_tokens,
            ),
            ("draftlens_generation_tokens", "Tokens of answers.", counters.tokens),
            ("draftlens_failed_rounds", "Rounds that ended with an error.", counters.failed_rounds),
            (
                "draftlens_prefill_stall_seconds",
                "Seconds in which answers waited for another prompt.",
                counters.stall_seconds,
            ),
            ("vllm:spec_decode_num_drafts", "Verified proposals.", counters.drafts),
            (
                "vllm:spec_decode_num_draft_tokens",
                "Verified draft tokens.",
                counters.draft_tokens,
            ),
            (
                "vllm:spec_decode_num_accepted_tokens",
                "Accepted draft tokens.",
                counters.accepted,
            ),
        ):
            yield CounterMetricFamily(name, help_text, number)
        positions = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Accepted draft tokens by their position after the last token.",
            labels=["position"],
        )
        for position, count in sorted(counters.accepted_by_position.copy().items()):
            positions.add_metric([str(position)], count)
        yield positions

    def _of_models(self) -> Iterator[Metric]:
        """What gateways read, with vLLM's labels."""
        waiting, running, share = (
            GaugeMetricFamily(f"vllm:{name}", help_text, labels=["model_name", "engine"])
            for name, help_text in (
                ("num_requests_waiting", "Requests that wait."),
                ("num_requests_running", "Requests that are answered."),
                (
                    "kv_cache_usage_perc",
                    "Part of the memory for keys and values that running requests may need.",
                ),
            )
        )
        for model, scheduler in self._schedulers.items():
            waiting.add_metric([model, "0"], scheduler.num_waiting)
            running.add_metric([model, "0"], scheduler.num_jobs)
            share.add_metric([model, "0"], scheduler.cache_share)
        yield from (waiting, running, share)

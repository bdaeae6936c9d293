"""Counters of the server in Prometheus' format, with the names that dashboards know as aliases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from edgeinfer.runtime.llm.stats import EngineStats

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (*(x * 10.0**e for e in range(-4, 1) for x in (1, 2, 5)), 10.0, 30.0, 60.0)

_VLLM = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
}
_VLLM_TOTALS = {
    "prompt_tokens": "vllm:prompt_tokens",
    "generated_tokens": "vllm:generation_tokens",
    "preemptions": "vllm:num_preemptions",
}
"""Figures of language models under the names that vLLM's dashboards read."""


class ModelMetrics:
    """What is counted for one model; the label is looked up once."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._requests = metrics.requests
        self._name = name
        self._known: dict[int, Counter] = {}
        self.waiting = metrics.waiting.labels(name)
        self.seconds = metrics.seconds.labels(name)
        self.refused = metrics.refused.labels(name)
        # Triton's names.
        self.success = metrics.triton_success.labels(name, "1")
        self.failure = metrics.triton_failure.labels(name, "1")
        self.duration_us = metrics.triton_duration.labels(name, "1")

    def ended(self, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        counter = self._known.get(status)
        if counter is None:
            counter = self._known[status] = self._requests.labels(self._name, str(status))
        counter.inc()
        self.seconds.observe(seconds)
        if status < 400:
            self.success.inc()
            self.duration_us.inc(seconds * 1e6)
        else:
            self.failure.inc()
        if status == 429:
            self.refused.inc()


class Metrics:
    """All counters of a server.

    Args:
        engines: gives the language models' figures when they are asked for; loads nothing.
    """

    def __init__(self, engines: Callable[[], Iterable[tuple[str, EngineStats]]]) -> None:
        self.registry = CollectorRegistry()
        model = ("model",)
        name = "edgeinfer_requests"
        self.requests = Counter(
            name, "Requests that were answered.", ("model", "status"), registry=self.registry
        )
        self.waiting = Gauge(
            "edgeinfer_waiting_requests",
            "Requests without an answer.",
            model,
            registry=self.registry,
        )
        self.refused = Counter(
            "edgeinfer_refused_requests", "Refused by a full queue.", model, registry=self.registry
        )
        self.seconds = Histogram(
            "edgeinfer_request_seconds",
            "From a request's last byte to its answer.",
            model,
            buckets=_SECONDS,
            registry=self.registry,
        )
        triton = ("model", "version")
        self.triton_success = Counter(
            "nv_inference_request_success", "As Triton.", triton, registry=self.registry
        )
        self.triton_failure = Counter(
            "nv_inference_request_failure", "As Triton.", triton, registry=self.registry
        )
        self.triton_duration = Counter(
            "nv_inference_request_duration_us", "As Triton.", triton, registry=self.registry
        )
        self.registry.register(_Engines(engines))

    def of(self, name: str) -> ModelMetrics:
        """Return the counters of a model."""
        return ModelMetrics(self, name)

    def text(self) -> bytes:
        """Return the page that Prometheus reads."""
        return generate_latest(self.registry)


class _Engines:
    """Language models, read when the page is asked for."""

    def __init__(self, engines: Callable[[], Iterable[tuple[str, EngineStats]]]) -> None:
        self._engines = engines

    def collect(self) -> Iterator[Metric]:
        found = list(self._engines())
        for field in fields(found[0][1]) if found else ():
            values = [(name, getattr(stats, field.name)) for name, stats in found]
            if not all(isinstance(value, int | float) for _, value in values):
                continue
            yield _gauge(f"edgeinfer_llm_{field.name}", values)
            if alias := _VLLM.get(field.name):
                yield _gauge(alias, values, "model_name")
            if alias := _VLLM_TOTALS.get(field.name):
                family = CounterMetricFamily(alias, "As vLLM.", labels=["model_name"])
                for name, value in values:
                    family.add_metric([name], float(value))
                yield family


def _gauge(
    metric: str, values: Iterable[tuple[str, float]], label: str = "model"
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(metric, "Of the engine; see EngineStats.", labels=[label])
    for name, value in values:
        family.add_metric([name], float(value))
    return family

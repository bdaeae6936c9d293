"""The page that Prometheus reads, with the names that dashboards know as aliases."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import accumulate, chain
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    UnknownMetricFamily,
)

from edgeinfer.runtime.serve.answers import Answers
from edgeinfer.runtime.serve.metrics import SECONDS, Engine, Metrics, ModelMetrics

_VLLM = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
}
_VLLM_TOTALS = {
    "prompt_tokens": ("vllm:prompt_tokens", "vllm:prefix_cache_queries"),
    "cached_tokens": ("vllm:prefix_cache_hits",),
    "generated_tokens": ("vllm:generation_tokens",),
    "preemptions": ("vllm:num_preemptions",),
}
_VLLM_TIMES = {
    "first_token": ("vllm:time_to_first_token_seconds",),
    "inter_token": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "queue": ("vllm:request_queue_time_seconds",),
    "reading": ("vllm:request_prefill_time_seconds",),
    "writing": ("vllm:request_decode_time_seconds",),
}
_VLLM_REASONS = {"cancelled": "abort"}
"""Figures of language models under the names that vLLM's dashboards read, older ones too."""

_VLLM_SIZES = {
    "prompts": ("vllm:request_prompt_tokens",),
    "answers": ("vllm:request_generation_tokens", "vllm:request_max_num_generation_tokens"),
}


class _Collector(Protocol):
    def collect(self) -> Iterator[Metric]: ...


def page(metrics: Metrics, names: Container[str]) -> bytes:
    """Return the page, of some models."""
    parts: list[_Collector] = [_Models(metrics), _Engines(metrics.engines, metrics.models)]
    if metrics.answers is not None:
        parts.append(_Kept(metrics.answers))
    registry = CollectorRegistry()
    registry.register(_Only(parts, names))
    return generate_latest(registry)


class _Models:
    """What is counted of each model."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Give all families that are counted here."""
        models = {name: _copied(counts) for name, counts in list(self._metrics.models.items())}
        by_status = CounterMetricFamily(
            "edgeinfer_requests", "Requests that were answered.", labels=["model", "status"]
        )
        refused = CounterMetricFamily(
            "edgeinfer_refused_requests", "Refused by a full queue.", labels=["model"]
        )
        passed_on = CounterMetricFamily(
            "edgeinfer_fallback_requests", "Answered by the fallback.", labels=["model"]
        )
        times = HistogramMetricFamily(
            "edgeinfer_request_seconds",
            "From a request's head to its answer.",
            labels=["model"],
        )
        good = _triton("request_success")
        bad = _triton("request_failure")
        spent = _triton("request_duration_us")
        for name, counts in models.items():
            for status, count in counts.statuses.items():
                by_status.add_metric([name, str(status)], count)
            refused.add_metric([name], counts.statuses.get(429, 0))
            passed_on.add_metric([name], counts.passed_on)
            times.add_metric([name], _buckets(accumulate(counts.buckets)), counts.seconds)
            all_good = sum(n for status, n in counts.statuses.items() if status < 400)
            good.add_metric([name, "1"], all_good)
            bad.add_metric([name, "1"], sum(counts.statuses.values()) - all_good)
            spent.add_metric([name, "1"], counts.good_us)
        yield from (by_status, refused, passed_on, times, good, bad, spent)
        waiting = [(name, float(count)) for name, count in self._metrics.waiting()]
        yield _gauge("edgeinfer_waiting_requests", waiting, about="Requests without an answer.")
        pending = _triton("pending_request_count")
        for name, pending_now in waiting:
            pending.add_metric([name, "1"], pending_now)
        answers, steps = _triton("count"), _triton("exec_count")
        queued, computed = _triton("queue_duration_us"), _triton("compute_infer_duration_us")
        runs = list(self._metrics.runs())
        oldest = [(name, stats.oldest_wait_s) for name, stats in runs]
        yield _gauge("edgeinfer_oldest_wait_seconds", oldest, about="Of who waits for a run.")
        why = CounterMetricFamily(
            "edgeinfer_batches", "Runs, by why they began.", labels=["model", "reason"]
        )
        for name, stats in runs:
            for reason, count in stats.dispatched.items():
                why.add_metric([name, reason], count)
            labels = [name, "1"]
            answers.add_metric(labels, stats.calls.runs)
            steps.add_metric(labels, stats.batches)
            queued.add_metric(labels, stats.queued_s * 1e6)
            computed.add_metric(labels, stats.computed_s * 1e6)
        yield from (why, pending, answers, steps, queued, computed)


def _triton(name: str) -> UnknownMetricFamily:
    """Return a family of Triton's; counters of this format would end in ``_total``, his do not."""
    return UnknownMetricFamily(f"nv_inference_{name}", "As Triton.", labels=["model", "version"])


def _copied(counts: ModelMetrics) -> ModelMetrics:
    """Return counts that no request changes any more: they are read on another thread."""
    copy = ModelMetrics()
    copy.statuses, copy.buckets = dict(counts.statuses), list(counts.buckets)
    copy.seconds, copy.good_us = counts.seconds, counts.good_us
    copy.passed_on = counts.passed_on
    return copy


class _Kept:
    """Figures of the answers that are kept, with Triton's names too."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def collect(self) -> Iterator[Metric]:
        """Give all families."""
        counts = dict(self._answers.counts)
        for what in ("hits", "misses"):
            found = [(name, getattr(count, what)) for name, count in counts.items()]
            ours = CounterMetricFamily(
                f"edgeinfer_answer_cache_{what}", "Of answers that are kept.", labels=["model"]
            )
            triton = UnknownMetricFamily(
                f"nv_cache_num_{what}_per_model", "As Triton.", labels=["model", "version"]
            )
            for name, count in found:
                ours.add_metric([name], count)
                triton.add_metric([name, "1"], count)
            yield from (ours, triton)


class _Only:
    """The families of collectors, with the samples of some models."""

    def __init__(self, parts: Sequence[_Collector], names: Container[str]) -> None:
        self._parts, self._names = parts, names

    def describe(self) -> list[Metric]:
        """Know nothing before the page is requested."""
        return []

    def collect(self) -> Iterator[Metric]:
        for family in chain.from_iterable(part.collect() for part in self._parts):
            family.samples = [
                sample
                for sample in family.samples
                if sample.labels.get("model", sample.labels.get("model_name")) in self._names
            ]
            yield family


class _Engines:
    """Language models, read when the page is requested.

    Args:
        engines: gives their figures.
        requests: what is counted of each model.
    """

    def __init__(
        self, engines: Callable[[], Iterable[Engine]], requests: Mapping[str, ModelMetrics]
    ) -> None:
        self._engines, self._requests = engines, requests

    def collect(self) -> Iterator[Metric]:
        found = list(self._engines())
        for field in fields(found[0][1]) if found else ():
            values = [(name, getattr(stats, field.name)) for name, stats, *_ in found]
            if not all(isinstance(value, int | float) for _, value in values):
                continue
            yield _gauge(f"edgeinfer_llm_{field.name}", values)
            if alias := _VLLM.get(field.name):
                yield _gauge(alias, values, "model_name")
            for alias in _VLLM_TOTALS.get(field.name, ()):
                family = CounterMetricFamily(alias, "As vLLM.", labels=["model_name"])
                for name, value in values:
                    family.add_metric([name], float(value))
                yield family
        yield from self._uses(found)
        yield from self._times(found)

    def _uses(self, found: Sequence[Engine]) -> Iterator[Metric]:
        shares = [(name, stats.pages_used / max(stats.pages, 1)) for name, stats, *_ in found]
        for alias in ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"):
            yield _gauge(alias, shares, "model_name")
        ends = CounterMetricFamily(
            "vllm:request_success", "As vLLM.", labels=["model_name", "finished_reason"]
        )
        for name, stats, *_ in found:
            for reason, count in stats.finished.items():
                ends.add_metric([name, _VLLM_REASONS.get(reason, reason)], count)
        yield ends

    def _times(self, found: Sequence[Engine]) -> Iterator[Metric]:
        whole = _histogram("vllm:e2e_request_latency_seconds")
        for name, *_ in found:
            counts = _copied(self._requests[name])
            whole.add_metric([name], _buckets(accumulate(counts.buckets)), counts.seconds)
        yield whole
        for what, aliases in _VLLM_TIMES.items():
            for alias in aliases:
                family = _histogram(alias)
                for name, _, times, _ in found:
                    sums, seconds = times[what].cumulative(SECONDS)
                    family.add_metric([name], _buckets(sums), seconds)
                yield family
        for what, aliases in _VLLM_SIZES.items():
            for alias in aliases:
                family = _histogram(alias)
                for name, *_, sizes in found:
                    sums, total = sizes[what].cumulative()
                    family.add_metric([name], _buckets(sums, sizes[what].BOUNDS), total)
                yield family


def _histogram(name: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, "As vLLM.", labels=["model_name"])


def _buckets(sums: Iterable[int], bounds: Sequence[float] = SECONDS) -> list[tuple[str, float]]:
    names = [*map(str, bounds), "+Inf"]
    return list(zip(names, map(float, sums), strict=True))


def _gauge(
    metric: str,
    values: Iterable[tuple[str, float]],
    label: str = "model",
    about: str = "Of the engine; see EngineStats.",
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(metric, about, labels=[label])
    for name, value in values:
        family.add_metric([name], float(value))
    return family

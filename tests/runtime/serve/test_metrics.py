"""Counters under the names that dashboards of Triton and vLLM read, with numbers that are right."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from edgeinfer.runtime.telemetry import TimeHistogram
from tests.runtime.serve.conftest import Server
from tests.runtime.serve.test_v2 import URL, body

TRITON = (
    "nv_inference_request_success",
    "nv_inference_request_duration_us",
    "nv_inference_count",
    "nv_inference_exec_count",
    "nv_inference_pending_request_count",
)
"""As Triton's documentation names them."""

VLLM = (
    *(
        f"vllm:{name}_{part}"
        for part in ("bucket", "sum", "count")
        for name in (
            "e2e_request_latency_seconds",
            "time_per_output_token_seconds",
            "inter_token_latency_seconds",
            "time_to_first_token_seconds",
            "request_queue_time_seconds",
            "request_prefill_time_seconds",
            "request_decode_time_seconds",
            "request_prompt_tokens",
            "request_generation_tokens",
            "request_max_num_generation_tokens",
        )
    ),
    *("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total"),
    *("vllm:num_requests_running", "vllm:num_requests_waiting"),
    *("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    *("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"),
)
"""Of the dashboard that vLLM's examples have."""


def figures(server: Server) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(server.client.get("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_dashboards_show_numbers(server: Server) -> None:
    before = figures(server)
    server.client.post(URL, json=body())
    given = {"model": "tiny", "prompt": "the cat", "max_tokens": 8, "ignore_eos": True}
    usage = server.client.post("/v1/completions", json=given).json()["usage"]
    after = figures(server)
    for name in TRITON:
        labels = [labels for labels, _ in after[name]]
        assert {"model": "double", "version": "1"} in labels, name

    def gained(name: str, **labels: str) -> float:
        def value(found: dict[str, list[tuple[dict[str, str], float]]]) -> float:
            return sum(v for told, v in found.get(name, ()) if labels.items() <= told.items())

        return value(after) - value(before)

    double = {"model": "double"}
    for name in ("nv_inference_request_success", "nv_inference_count"):
        assert gained(name, **double) == 1
    assert gained("nv_inference_exec_count", **double) == 1
    assert gained("nv_inference_compute_infer_duration_us", **double) > 0
    tiny = {"model_name": "tiny"}
    for name in VLLM:
        assert [labels for labels, _ in after[name] if tiny.items() <= labels.items()], name
    assert gained("vllm:prompt_tokens_total", **tiny) == usage["prompt_tokens"]
    assert gained("vllm:generation_tokens_total", **tiny) == 8
    assert gained("vllm:request_success_total", **tiny, finished_reason="length") == 1
    assert gained("vllm:e2e_request_latency_seconds_count", **tiny) == 1
    assert gained("vllm:e2e_request_latency_seconds_bucket", **tiny, le="+Inf") == 1
    assert gained("vllm:time_to_first_token_seconds_count", **tiny) == 1
    assert gained("vllm:time_to_first_token_seconds_sum", **tiny) > 0
    assert gained("vllm:request_prompt_tokens_sum", **tiny) == usage["prompt_tokens"]
    assert gained("vllm:request_generation_tokens_bucket", **tiny, le="5") == 0
    assert gained("vllm:request_generation_tokens_bucket", **tiny, le="10") == 1
    assert gained("vllm:request_decode_time_seconds_sum", **tiny) > 0
    assert gained("vllm:time_per_output_token_seconds_count", **tiny) > 0


def test_a_histogram_says_how_many_were_shorter() -> None:
    times = TimeHistogram()
    for ms in (0.5, 1.5, 3, 3, 40):
        times.add(int(ms * 1e6))
    counts, seconds = times.cumulative((0.001, 0.002, 0.01, 1.0))
    assert counts == [1, 2, 4, 5, 5]
    assert seconds == pytest.approx(0.048)

"""What published dashboards of Grafana ask Prometheus, asked of a real one that reads this server.

Source: queries of ``deploy/k8s-onprem/dashboard.json`` of triton-inference-server/server (BSD-3),
and of ``examples/observability/prometheus_grafana/grafana.json`` of vllm-project/vllm (Apache-2.0).
"""

from __future__ import annotations

import math
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.runtime.serve.conftest import Server
from tests.runtime.serve.test_v2 import URL, body

TRITON = (
    "count(count(nv_inference_count) by (instance))",
    "sum by (pod) (rate(nv_inference_count[1m])) / ignoring(pod) group_left "
    "sum (rate(nv_inference_count[1m]))",
    "sum(nv_inference_request_success) by (pod)",
    "sum(nv_inference_request_failure) by (pod)",
    "sum(rate(nv_inference_compute_infer_duration_us[30s])) by (model) / 1000",
    "avg(rate(nv_inference_queue_duration_us[30s])/(1+rate(nv_inference_request_success[30s]))) "
    "by (pod)",
)

_TIMES = ("e2e_request_latency", "inter_token_latency", "time_to_first_token")
_OF = '{model_name="$model_name"}'
VLLM = (
    *(
        f"histogram_quantile({share}, sum by(le) "
        f"(rate(vllm:{name}_seconds_bucket{_OF}[$__rate_interval])))"
        for name in _TIMES
        for share in (0.99, 0.95, 0.9, 0.5)
    ),
    *(
        f"rate(vllm:{name}_seconds_sum{_OF}[$__rate_interval])\n/\n"
        f"rate(vllm:{name}_seconds_count{_OF}[$__rate_interval])"
        for name in _TIMES
    ),
    f"rate(vllm:prompt_tokens_total{_OF}[$__rate_interval])",
    f"rate(vllm:generation_tokens_total{_OF}[$__rate_interval])",
    f"vllm:num_requests_running{_OF}",
    f"vllm:num_requests_waiting{_OF}",
    f"vllm:kv_cache_usage_perc{_OF}",
    f"sum by(le) (increase(vllm:request_prompt_tokens_bucket{_OF}[$__rate_interval]))",
    f"sum by(le) (increase(vllm:request_generation_tokens_bucket{_OF}[$__rate_interval]))",
    f"sum by(finished_reason) (increase(vllm:request_success_total{_OF}[$__rate_interval]))",
    f"rate(vllm:request_queue_time_seconds_sum{_OF}[$__rate_interval])",
    f"rate(vllm:request_prefill_time_seconds_sum{_OF}[$__rate_interval])",
    f"rate(vllm:request_decode_time_seconds_sum{_OF}[$__rate_interval])",
    f"rate(vllm:request_max_num_generation_tokens_sum{_OF}[$__rate_interval])",
)

_NAME = re.compile(r"\b(?:nv_|vllm:)\w+")


def work(server: Server) -> None:
    assert server.client.post(URL, json=body()).status_code == 200
    given = {"model": "tiny", "prompt": "the cat", "max_tokens": 8, "ignore_eos": True}
    assert server.client.post("/v1/completions", json=given).status_code == 200


def test_every_name_that_they_read_is_there(server: Server) -> None:
    work(server)
    lines = server.client.get("/metrics").text.splitlines()
    there = {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}
    asked = {name for query in (*TRITON, *VLLM) for name in _NAME.findall(query)}
    assert len(asked) > 20
    assert asked <= there, asked - there


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus, as Debian has it")
def test_prometheus_answers_their_queries_with_numbers(server: Server, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    target = server.url.removeprefix("http://")
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: e, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    with subprocess.Popen(
        [*command, f"--web.listen-address=127.0.0.1:{port}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as running:
        try:
            missing = ask_until_told(server, f"http://127.0.0.1:{port}")
        finally:
            running.terminate()
    assert missing == []


def ask_until_told(server: Server, url: str) -> list[str]:
    """Return the queries that have no number after a minute of requests and scrapes."""
    left = [*TRITON, *VLLM]
    end = time.monotonic() + 60
    while left and time.monotonic() < end:
        work(server)
        time.sleep(0.3)
        left = [query for query in left if not numbers(url, query)]
    return left


def numbers(url: str, query: str) -> list[float]:
    """Return what Prometheus answers, without what is no number."""
    text = query.replace("$model_name", "tiny").replace("$__rate_interval", "30s")
    try:
        found: Any = httpx.get(f"{url}/api/v1/query", params={"query": text}).json()
    except httpx.HTTPError:
        return []
    assert found["status"] in ("success",), found
    values = [float(each["value"][1]) for each in found["data"]["result"]]
    return [value for value in values if math.isfinite(value)]

"""KServe's own client of the Open Inference Protocol, over HTTP and gRPC."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.runtime.conftest import Fakes
from tests.runtime.pipelines.conftest import write_graph
from tests.runtime.serve.conftest import KEY, Starter

PYTHON = "KSERVE_PYTHON"
CLIENT = Path(__file__).with_name("kserve_client.py")


@pytest.mark.slow
@pytest.mark.skipif(PYTHON not in os.environ, reason=f"{PYTHON} names no Python that has kserve")
def test_its_client_is_answered(tmp_path: Path) -> None:
    net = write_graph(tmp_path, "net", "net (float[N, 3] x) => (float[N, 3] y) { y = Add(x, x) }")
    start = Starter(tmp_path, Fakes())
    try:
        server = start(str(net), only=True, keys=(KEY,), grpc_port=0)
        assert server.app.rpc is not None
        address = f"127.0.0.1:{server.app.rpc.port}"
        command = [os.environ[PYTHON], str(CLIENT), server.url, address, KEY]
        alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, capture_output=True, text=True, env=alone, timeout=300)
    finally:
        start.close()
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    shape, unknown = found.pop("shape"), found.pop("unknown")
    assert shape.startswith("400: input 'x': expected size 3 in axis 1")
    assert unknown.startswith("404: no model 'none'")
    doubled = [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]
    assert found == {
        **dict.fromkeys(("live", "ready", "model", "rpc live", "rpc model"), True),
        **dict.fromkeys(("json", "raw", "rpc values", "rpc raw"), doubled),
    }

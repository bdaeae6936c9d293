"""Triton's own front end with a model that doubles; ``test_triton.py`` runs it.

It is in an environment of its own, and needs a Python with a shared library, such as Debian's.
Arguments: the port; the next two are for gRPC and counters.
"""

import sys
from typing import Any

import numpy as np
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig


def double(requests: Any) -> list[dict[str, Any]]:
    return [{"y": request["x"] * 2} for request in requests]


port = int(sys.argv[1])
ports = {"http_port": port, "grpc_port": port + 1, "metrics_port": port + 2}
everything = TritonSecurityConfig(restricted_endpoints=[])
with Triton(config=TritonConfig(**ports), security_config=everything) as triton:
    triton.bind(
        model_name="net",
        infer_func=double,
        inputs=[Tensor(name="x", dtype=np.float32, shape=(-1, 3))],
        outputs=[Tensor(name="y", dtype=np.float32, shape=(-1, 3))],
        config=ModelConfig(batching=False),
    )
    triton.serve()

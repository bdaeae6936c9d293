"""A WSGI application; its session is loaded before its workers are forked."""

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import edgeinfer
from tests.e2e.hostile import SIZE

SESSION = edgeinfer.load(os.environ["BUNDLE"], **json.loads(os.environ["OPTIONS"]))


def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """Answer with the worker's number and the result for the seed that is requested."""
    rng = np.random.default_rng(int(environ["QUERY_STRING"] or 0))
    y = SESSION(rng.standard_normal((1, SIZE)).astype(np.float32))
    body = json.dumps([os.getpid(), np.asarray(y)[0].tolist()]).encode()
    start("200 OK", [("Content-Length", str(len(body)))])
    return [body]

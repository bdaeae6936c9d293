"""The protocol's published OpenAPI file: whatever it lets clients ask, answers are as it says.

The file comes with MLServer, whose authors wrote the protocol: ``pip install --no-deps mlserver``.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.serve.conftest import Server
from tests.runtime.serve.test_v2 import body

schemathesis = pytest.importorskip("schemathesis")
from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
)

found = importlib.util.find_spec("mlserver")
if found is None or found.origin is None:
    pytest.skip("mlserver, which brings the file, is not installed", allow_module_level=True)
FILE = Path(found.origin).parent / "rest" / "openapi" / "dataplane.json"


def read() -> dict[str, Any]:
    """Read the file, with what is no OpenAPI in it put right: places of enums, a type of bytes."""
    text = FILE.read_text("utf-8").replace("#/components/enums/", "#/components/schemas/")
    whole: dict[str, Any] = json.loads(text)
    parts = whole["components"]
    parts["schemas"] |= parts.pop("enums")
    parts["schemas"]["TensorData"] = {"type": "array"}
    return whole


RAW = read()
# Streams of tensors are that server's own, and the text of generate is another there.
OPERATIONS = [
    (path, method, mode)
    for path, methods in RAW["paths"].items()
    for method in ("get", "post")
    for mode in ("positive", "negative")
    if method in methods
    and not path.endswith(("/infer_stream", "/generate", "/generate_stream"))
    and (method, mode) != ("get", "negative")
]
EXAMPLES = 60


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("path", "method", "mode"), OPERATIONS)
def test_answers_are_as_the_file_says(server: Server, path: str, method: str, mode: str) -> None:
    schema = schemathesis.openapi.from_dict(RAW)
    kind = schemathesis.GenerationMode(mode)
    statuses: set[int] = set()

    def ask(case: Any) -> None:
        given_names = {"model_name": "double", "model_version": "1"}
        case.path_parameters = {name: given_names[name] for name in case.path_parameters or {}}
        if mode == "positive" and isinstance(case.body, dict):
            # Or all would be refused for their names.
            for tensor, name in zip(case.body["inputs"], "xk", strict=False):
                tensor["name"] = name
            case.body.pop("outputs", None)
        answer = case.call(base_url=server.url)
        statuses.add(answer.status_code)
        assert answer.status_code < 500, answer.text
        if answer.status_code < 400:
            checks = [response_schema_conformance, content_type_conformance]
            case.validate_response(answer, checks=checks)
        else:
            assert isinstance(answer.json()["error"], str)

    limited = settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    cases = schema[path][method.upper()].as_strategy(generation_mode=kind)
    seed(0)(limited(given(case=cases)(ask)))()
    if method == "get":
        assert statuses == {200}


@pytest.mark.slow
def test_an_answer_with_numbers_is_as_the_file_says(server: Server) -> None:
    schema = schemathesis.openapi.from_dict(RAW)
    operation = schema["/v2/models/{model_name}/infer"]["POST"]
    case = operation.Case(
        path_parameters={"model_name": "double"}, body=body(), media_type="application/json"
    )
    answer = case.call(base_url=server.url)
    assert answer.status_code == 200
    case.validate_response(answer, checks=[response_schema_conformance, content_type_conformance])

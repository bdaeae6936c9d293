"""Requests that ask for more than anybody needs: refused by name, never a failure of the server."""

import json
from typing import Any

import pytest

from edgeinfer.runtime.serve import asked, tensors
from edgeinfer.runtime.serve.http import RequestError
from edgeinfer.types import TensorSpec
from tests.runtime.serve.conftest import Server

SPEC = TensorSpec("x", "float32", ("n", 3))


@pytest.mark.parametrize("shape", [[0, 2**63], [0, 2**63, 2], [2**40, 2**40], [0, 10**18]])
def test_sizes_that_no_array_has(shape: list[int]) -> None:
    item = {"name": "x", "shape": shape, "datatype": "FP32", "data": []}
    body = json.dumps({"inputs": [item]}).encode()
    with pytest.raises(RequestError, match="more than 1000 elements"):
        tensors.read(body, None, (SPEC,), (SPEC,), 1000)


@pytest.mark.parametrize("name", sorted(asked._OWN))
def test_a_template_is_not_given_what_other_fields_say(server: Server, name: str) -> None:
    data: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
    data["chat_template_kwargs"] = {name: 1}
    answer = server.client.post("/v1/chat/completions", json=data)
    assert answer.status_code == 400
    assert f"{name}: not the template's" in answer.text


@pytest.mark.parametrize("more", [{"n": 10**9}, {"prompt": ["a"] * 1000}])
def test_the_number_of_texts(server: Server, more: dict[str, Any]) -> None:
    answer = server.client.post("/v1/completions", json={"model": "tiny", "prompt": "a", **more})
    assert answer.status_code == 400
    assert "at most 128" in answer.text

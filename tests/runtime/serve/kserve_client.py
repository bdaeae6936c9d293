"""What KServe's own client gets of a server; ``test_kserve.py`` runs it by a Python that has it.

Its packages bring older ones of ours with them, so they are in an environment of their own.
"""

import asyncio
import json
import sys
from typing import Any

import numpy as np
from httpx import HTTPStatusError
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def request(binary: bool, model: str = "net", columns: int = 3) -> InferRequest:
    given = InferInput("x", [2, columns], "FP32")
    given.set_data_from_numpy(X[:, :columns], binary_data=binary)
    wanted = [RequestedOutput("y", parameters={"binary_data": binary})]
    return InferRequest(model_name=model, infer_inputs=[given], request_outputs=wanted)


def values(answer: Any) -> Any:
    return answer.outputs[0].as_numpy().tolist()


async def asked(url: str, grpc: str, key: str) -> dict[str, Any]:
    headers = {"x-api-key": key}
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=1, timeout=60))
    found: dict[str, Any] = {
        "live": await client.is_server_live(url, headers),
        "ready": await client.is_server_ready(url, headers),
        "model": await client.is_model_ready(url, "net", headers),
    }
    for name, binary in (("json", False), ("raw", True)):
        answer = await client.infer(url, request(binary), headers=headers, model_name="net")
        found[name] = values(answer)
    for name, wrong in (("shape", request(True, columns=2)), ("unknown", request(True, "none"))):
        try:
            await client.infer(url, wrong, headers=headers, model_name=wrong.model_name)
        except HTTPStatusError as error:
            found[name] = f"{error.response.status_code}: {error}"
    rpc = InferenceGRPCClient(grpc, timeout=60)
    told = (("authorization", f"Bearer {key}"),)
    found["rpc live"] = await rpc.is_server_live(headers=told)
    found["rpc model"] = await rpc.is_model_ready("net", headers=told)
    for name, binary in (("rpc values", False), ("rpc raw", True)):
        found[name] = values(await rpc.infer(request(binary), headers=told))
    await rpc.close()
    await client.close()
    return found


sys.stdout.write(json.dumps(asyncio.run(asked(*sys.argv[1:]))))

"""What uvicorn and ONNX Runtime alone cost: no keys, limits, checks. Arguments: model, port."""

import sys

import numpy as np
import onnxruntime
import uvicorn

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
name = session.get_inputs()[0].name


async def app(scope, receive, send):
    message = await receive()
    body = message["body"]
    while message["more_body"]:
        message = await receive()
        body += message["body"]
    (y,) = session.run(None, {name: np.frombuffer(body, np.float32)[None]})
    length = (b"content-length", str(y.nbytes).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": y.tobytes()})


uvicorn.run(app, port=int(sys.argv[2]), access_log=False, log_level="warning", lifespan="off")

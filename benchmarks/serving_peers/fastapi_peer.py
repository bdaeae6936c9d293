"""FastAPI with ONNX Runtime: JSON on /json, raw bytes on /raw. Arguments: model, port."""

import sys

import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
name = session.get_inputs()[0].name
app = FastAPI()


class Given(BaseModel):
    data: list[list[float]]


@app.post("/json")
def by_json(given: Given) -> dict[str, list[list[float]]]:
    return {"data": session.run(None, {name: np.asarray(given.data, np.float32)})[0].tolist()}


@app.post("/raw")
async def by_bytes(request: Request) -> Response:
    x = np.frombuffer(await request.body(), np.float32)[None]
    (y,) = await run_in_threadpool(session.run, None, {name: x})
    return Response(y.tobytes(), media_type="application/octet-stream")


uvicorn.run(app, port=int(sys.argv[2]), access_log=False, log_level="warning")

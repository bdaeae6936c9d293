"""Triton's front end over its Python backend, batches of up to 16. Arguments: model, port."""

import sys

import numpy as np
import onnxruntime
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
given, made = session.get_inputs()[0], session.get_outputs()[0]


@batch
def run(**inputs: np.ndarray) -> list[np.ndarray]:
    return session.run(None, inputs)


port = int(sys.argv[2])
config = TritonConfig(http_port=port, grpc_port=port + 1, metrics_port=port + 2)
with Triton(config=config) as triton:
    triton.bind(
        model_name="net",
        infer_func=run,
        inputs=[Tensor(name=given.name, dtype=np.float32, shape=(given.shape[1],))],
        outputs=[Tensor(name=made.name, dtype=np.float32, shape=(made.shape[1],))],
        config=ModelConfig(
            max_batch_size=16, batcher=DynamicBatcher(max_queue_delay_microseconds=500)
        ),
    )
    triton.serve()

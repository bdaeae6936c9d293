"""MLServer with batches of up to 16. Arguments: model, port."""

import asyncio
import os
import sys

import numpy as np
import onnxruntime
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Net(MLModel):
    async def load(self) -> bool:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        kind = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(os.environ["MODEL"], options, providers=kind)
        self.input = self.session.get_inputs()[0].name
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        x = NumpyCodec.decode_input(payload.inputs[0]).astype(np.float32)
        (y,) = self.session.run(None, {self.input: x})
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", y)])


async def main() -> None:
    port = int(sys.argv[2])
    settings = Settings(
        http_port=port,
        grpc_port=port + 1,
        metrics_port=port + 2,
        # Workers of their own end at once with today's uvloop.
        parallel_workers=0,
        debug=False,
        load_models_at_startup=False,
    )
    server = MLServer(settings)
    net = ModelSettings(name="net", implementation=Net, max_batch_size=16, max_batch_time=0.0005)
    await server.start([net])


os.environ["MODEL"] = sys.argv[1]
asyncio.run(main())

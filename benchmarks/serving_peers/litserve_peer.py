"""LitServe with batches of up to 16. Arguments: model, port."""

import sys
from typing import Any

import litserve
import numpy as np
import onnxruntime


class Api(litserve.LitAPI):
    def setup(self, device: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        kind = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(sys.argv[1], options, providers=kind)
        self.name = self.session.get_inputs()[0].name

    def decode_request(self, request):
        return np.asarray(request["data"], np.float32)

    def batch(self, inputs: list[Any]) -> Any:
        return np.concatenate(inputs)

    def predict(self, x: Any) -> Any:
        return self.session.run(None, {self.name: x})[0]

    def unbatch(self, output: Any) -> list[Any]:
        return list(output[:, None])

    def encode_response(self, output: Any) -> Any:
        return {"data": output.tolist()}


if __name__ == "__main__":
    api = Api(max_batch_size=16, batch_timeout=0.0005)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(port=int(sys.argv[2]), generate_client_file=False, log_level="warning")

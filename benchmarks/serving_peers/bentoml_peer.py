"""BentoML with batches of up to 16. Arguments: model, port."""

import os
import subprocess
import sys
from pathlib import Path

import bentoml
import numpy as np
import onnxruntime


@bentoml.service(workers=1, traffic={"timeout": 60})
class Net:
    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        kind = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(os.environ["MODEL"], options, providers=kind)
        self.name = self.session.get_inputs()[0].name

    @bentoml.api(batchable=True, max_batch_size=16, max_latency_ms=1000)
    def run(self, data: np.ndarray) -> np.ndarray:
        return self.session.run(None, {self.name: data.astype(np.float32)})[0]


if __name__ == "__main__":
    command = [sys.executable, "-m", "bentoml", "serve", f"{Path(__file__).stem}:Net"]
    command += ["--port", sys.argv[2], "--host", "127.0.0.1", "--quiet"]
    folder = str(Path(__file__).parent)
    raise SystemExit(subprocess.call(command, cwd=folder, env={**os.environ, "MODEL": sys.argv[1]}))

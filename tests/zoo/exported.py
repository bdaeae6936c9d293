"""PyTorch nets as ONNX files, written by both of PyTorch's own exporters and kept in the cache.

python -m tests.zoo.exported NAME dynamo|script
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests.zoo import folder

EXPORTERS = ("dynamo", "script")
SOURCES = ("nets.py", "vision.py", "sequence.py", "pretrained.py", "exported.py")


def exported(name: str, exporter: str) -> Path:
    """Return the file of a net, all its dynamic sizes open; it is written once.

    A process of its own writes it: the exporters leave hundreds of megabytes behind.

    Raises:
        subprocess.CalledProcessError: the exporter fails; its message went to stderr.
    """
    here = Path(__file__).parent
    state = hashlib.sha256(version("torch").encode() + version("onnxscript").encode())
    for source in SOURCES:
        state.update((here / source).read_bytes())
    target = folder() / "exported" / state.hexdigest()[:12] / f"{name}-{exporter}.onnx"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.zoo.exported", name, exporter, str(target)]
        subprocess.run(command, check=True, cwd=here.parents[1], stdout=subprocess.DEVNULL)
    return target


def _write(name: str, exporter: str, target: Path) -> None:
    import torch

    from tests.zoo.nets import torch_model

    module, inputs, dynamic = torch_model(name)
    # The exporters bake in a size of 1.
    for key, axes in dynamic.items():
        for axis in axes:
            if inputs[key].shape[axis] == 1:
                inputs[key] = torch.cat([inputs[key]] * 2, axis)
    part = target.with_suffix(".part")
    if exporter == "dynamo":
        torch.onnx.export(
            module,
            (),
            part,
            kwargs=inputs,
            input_names=list(inputs),
            dynamic_shapes=dynamic,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    else:
        torch.onnx.export(
            module,
            tuple(inputs.values()),
            part,
            input_names=list(inputs),
            dynamic_axes=dynamic,
            opset_version=17,
            dynamo=False,
        )
    part.replace(target)


if __name__ == "__main__":
    _write(sys.argv[1], sys.argv[2], Path(sys.argv[3]))

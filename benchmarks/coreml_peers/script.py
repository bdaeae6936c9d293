"""One conversion, run by path with the Python of a tool's own environment.

    python script.py TOOL SOURCE TARGET SIZES

SIZES is JSON: least, first and most size by the name of an open dimension; empty for fixed shapes.
Prints the CPU seconds of the whole process as its last line.
"""

import json
import logging
import sys
import time
from pathlib import Path


def edgeinfer(source: str, target: Path, sizes: dict[str, list[int]]) -> None:
    from edgeinfer import profiles
    from edgeinfer.convert.lower.coreml.target import CoreMLTarget
    from edgeinfer.convert.lower.target import LowerOptions
    from edgeinfer.convert.passes import normalise
    from edgeinfer.convert.sources import read

    normal = normalise(read(source).model).model
    folder = target.parent
    made = CoreMLTarget().lower(normal, profiles.load("ios"), LowerOptions("fp32"), folder)
    if (folder / made.files[0].relative_to(folder).parts[0]) != target:
        raise RuntimeError(f"wrote {made.files[0]}")


def onnx2coreml(source: str, target: Path, sizes: dict[str, list[int]]) -> None:
    import onnx2coreml as tool  # type: ignore[import-not-found]

    made = tool.convert(source, minimum_deployment_target="iOS17", compute_precision="fp32")
    made.save(str(target))


def onnxsim(source: str, target: Path, sizes: dict[str, list[int]]) -> None:
    import coremltools
    import onnx
    import onnxsim as tool  # type: ignore[import-not-found]

    model = onnx.load(source)
    try:
        model, _ = tool.simplify(model)
    except Exception as error:
        print(f"not simplified: {error}", file=sys.stderr)
    tool.export_coreml(
        model,
        str(target),
        compute_precision=coremltools.precision.FLOAT32,
        minimum_deployment_target=coremltools.target.iOS17,
        dynamic_shapes={name: tuple(three) for name, three in sizes.items()} or None,
    )


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    known = {f.__name__: f for f in (edgeinfer, onnx2coreml, onnxsim)}
    known[sys.argv[1]](sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4]))
    sys.stdout.write(f"\n{time.process_time()}\n")

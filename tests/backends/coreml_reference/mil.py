"""Packages made with coremltools' own builder, for the tests of the evaluator."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.backends.engines import import_coremltools


def program(
    build: Callable[..., Any],
    inputs: Mapping[str, Any],
    *,
    target: str = "iOS17",
    states: Mapping[str, tuple[int, ...]] | None = None,
    dtypes: Mapping[str, str] | None = None,
) -> Any:
    """Return a program: ``build`` takes the builder and the inputs by name."""
    ct = import_coremltools()
    from coremltools.converters.mil import Builder as mb  # noqa: N813
    from coremltools.converters.mil.mil import Function, Program, get_new_symbol, types

    def shape_of(given: Any) -> tuple[Any, ...]:
        if isinstance(given, ct.EnumeratedShapes):
            columns = list(zip(*[s.shape for s in given.shapes], strict=True))
            return tuple(c[0] if len(set(c)) == 1 else get_new_symbol() for c in columns)
        return tuple(n if isinstance(n, int) else get_new_symbol() for n in given)

    kinds = {name: getattr(types, kind) for name, kind in (dtypes or {}).items()}
    places = {
        name: mb.placeholder(shape=shape_of(given), dtype=kinds.get(name, types.fp32))
        for name, given in inputs.items()
    }
    for name, shape in (states or {}).items():
        places[name] = mb.state_tensor_placeholder(shape=shape, dtype=types.fp16)
    made = Program()
    with Function(places, opset_version=getattr(ct.target, target)) as function:
        results = build(mb, **function.inputs)
        function.set_outputs(list(results) if isinstance(results, (tuple, list)) else [results])
        made.add_function("main", function)
    return made


def package(
    path: Path,
    build: Callable[..., Any],
    inputs: Mapping[str, Any],
    *,
    target: str = "iOS17",
    precision: str = "fp16",
    states: Mapping[str, tuple[int, ...]] | None = None,
    dtypes: Mapping[str, str] | None = None,
    **options: Any,
) -> Path:
    """Write what ``program`` makes."""
    ct = import_coremltools()
    made = program(build, inputs, target=target, states=states, dtypes=dtypes)
    given = {}
    if not states:
        arrays = {"fp32": np.float32, "fp16": np.float16, "int32": np.int32}
        given["inputs"] = [
            ct.TensorType(name=n, shape=s, dtype=arrays[(dtypes or {}).get(n, "fp32")])
            for n, s in inputs.items()
        ]
    compute = {"fp16": ct.precision.FLOAT16, "fp32": ct.precision.FLOAT32}[precision]
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ct.convert(
            made,
            convert_to="mlprogram",
            minimum_deployment_target=getattr(ct.target, target),
            compute_precision=compute,
            skip_model_load=True,
            **given,
            **options,
        )
        model.save(str(path))
    return path

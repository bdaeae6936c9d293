"""Forms of operators as text, lowered as one model for each format, run, and compared.

A form is what one lowering has to give on every target: a graph, feeds in turn, and the formats
that refuse it. What is right is what ONNX Runtime computes, or what the form says.
"""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.convert.lower import LowerOptions, target_for
from edgeinfer.convert.lower.target import Prepared
from edgeinfer.convert.passes import input_specs, normalise, output_specs
from edgeinfer.types import Array
from tests.conformance.everywhere import PLACES, lacking
from tests.convert.lower.running import run as run_onnx
from tests.convert.lower.tflite.run import outputs as run_tflite
from tests.convert.lower.tflite.together import joined, joined_feeds, prefix

Feeds = dict[str, Array]
RANDOM = np.random.default_rng(0)
LEAST, MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
FORMATS = {"tflite": "litert", "mlprogram": "coreml", "aimodel": "coreai", "tvm": "tvm"}
"""What runs each of the formats whose operators are lowered one by one."""


@dataclass(frozen=True)
class Form:
    """A graph that every format has to compute.

    Attributes:
        text: of the graph, without a header and a name.
        feeds: of each run.
        known: constants.
        want: outputs, where ONNX Runtime has no kernel.
        opset: of the default domain.
    """

    text: str
    feeds: list[Feeds]
    known: Mapping[str, Array] = field(default_factory=dict)
    want: Mapping[str, Array] | None = None
    opset: int = 21

    def opened(self) -> Form:
        """Return it with all sizes of its inputs open."""
        given, rest = self.text.split(") => ", 1)
        names = (f"d{n}" for n in itertools.count())
        return replace(
            self,
            text=re.sub(r"(?<=[\[ ])\d+(?=[\],])", lambda _: next(names), given) + ") => " + rest,
        )


def form(
    call: str,
    known: Mapping[str, Array] | None = None,
    *,
    outs: str = "y",
    opset: int = 21,
    want: Mapping[str, Array] | None = None,
    **feeds: Array,
) -> Form:
    """Return one call of an operator, or nodes, on inputs of known sizes."""
    names = {"float32": "float", "float64": "double"}
    given = ", ".join(
        f"{names.get(x.dtype.name, x.dtype.name)}{list(x.shape) or ''} {name}"
        for name, x in feeds.items()
    )
    call = call.replace("<>", "")
    body = call if " = " in call.partition("(")[0] else f"{outs} = {call}"
    return Form(f"({given}) => ({outs}) {{ {body} }}", [feeds], known or {}, want, opset)


def f(*shape: int) -> Array:
    """Normally distributed numbers."""
    return RANDOM.standard_normal(shape).astype(np.float32)


def i(*values: int) -> Array:
    """Whole numbers."""
    return np.array(values, np.int64)


def one(value: float, dtype: Any = np.int64) -> Array:
    """A number without axes."""
    return np.array(value, dtype)


def check(
    form: str, forms: Mapping[str, Form], refused: Mapping[str, str] | int, rtol: float = 1e-5
) -> None:
    """Lower forms for a format, run each with its feeds, and compare; skip where nothing runs it.

    Args:
        form: The format.
        forms: by name.
        refused: What it says of forms that it cannot express, by name; or at most how many.
        rtol: of the largest magnitude of an expected output.
    """
    place = PLACES[FORMATS[form]]
    if reason := lacking(place.name):
        pytest.skip(reason)
    said, faults = dict[str, str](), list[str]()
    for opset in sorted({one.opset for one in forms.values()}):
        alike = {name: one for name, one in forms.items() if one.opset == opset}
        runs = {name: _runs(form, one) for name, one in alike.items()}
        idle = {name: one for name, one in alike.items() if not runs[name]}
        said |= _prepared(form, idle)[0]
        problems, ready = _prepared(form, {k: v for k, v in alike.items() if k not in idle})
        said |= problems
        taken = {name: one for name, one in alike.items() if name not in {*said, *idle}}
        if ready:
            faults += _faults(form, ready, taken, runs, rtol)
    if isinstance(refused, int):
        faults += [f"more are refused than {refused}: {said}"] if len(said) > refused else []
    else:
        for name in said.keys() | refused.keys():
            if refused.get(name, "?") not in said.get(name, ""):
                faults.append(f"{name}: refused {said.get(name)!r}, not {refused.get(name)!r}")
    if faults:
        raise AssertionError("\n".join([form, *faults]))


def _model(forms: Sequence[Form]) -> onnx.ModelProto:
    return joined([_parsed(form) for form in forms])


def _parsed(form: Form) -> onnx.ModelProto:
    head = f'<ir_version: 10, opset_import: ["": {form.opset}]> g '
    made = onnx.parser.parse_model(head + form.text)
    held = [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in form.known.items()]
    made.graph.initializer.extend(held)
    made = onnx.shape_inference.infer_shapes(made)
    for value in made.graph.output:
        # Some operators of older opsets have no function for it.
        if not value.type.tensor_type.elem_type:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return made


def _prepared(form: str, forms: Mapping[str, Form]) -> tuple[dict[str, str], Prepared | None]:
    """Return what a format says of forms that it cannot express, and the others, to be written."""
    found: dict[str, str] = {}
    profile = profiles.load(PLACES[FORMATS[form]].profile)
    while len(found) < len(forms):
        left = [name for name in forms if name not in found]
        model = normalise(ir.from_proto(_model([forms[name] for name in left]))).model
        prepared = target_for(form).prepare(model, profile, LowerOptions())
        if not prepared.problems:
            return found, prepared
        for problem in prepared.problems:
            row = re.search(r"row(\d+)_", f"{problem.node} {problem.detail}")
            assert row, f"{form}: {problem}"
            found.setdefault(left[int(row[1])], problem.detail)
    return found, None


def _faults(
    form: str,
    ready: Prepared,
    forms: Mapping[str, Form],
    runs: Mapping[str, Sequence[tuple[Feeds, Feeds]]],
    rtol: float,
) -> list[str]:
    faults, names = [], list(forms)
    with _opened(form, ready, _model([*forms.values()])) as ways:
        for turn in range(max(len(runs[name]) for name in names)):
            now = [runs[name][turn % len(runs[name])] for name in names]
            feeds, right = (joined_feeds([pair[side] for pair in now]) for side in (0, 1))
            for way, run in ways.items():
                got = run(feeds)
                assert set(got) == set(right)
                for output, value in right.items():
                    if fault := _fault(np.asarray(got[output]), np.asarray(value), rtol):
                        name = names[int(output[3 : output.index("_")])]
                        faults.append(f"{name} ({way}, run {turn}): {output}: {fault}")
    return faults


def _runs(form: str, one: Form) -> list[tuple[Feeds, Feeds]]:
    """Return feeds that a format takes, and what is right for them."""
    source = ir.from_proto(_model([one]))
    names = [str(value.name).removeprefix(prefix(0)) for value in source.graph.outputs]
    found = []
    for feeds in one.feeds:
        given = joined_feeds([feeds])
        right = one.want or dict(zip(names, run_onnx(source, given), strict=True))
        if _holds(form, feeds, right):
            found.append((feeds, dict(right)))
    return found


def _holds(form: str, feeds: Feeds, right: Mapping[str, Array]) -> bool:
    """Whether values exist in a format: open sizes of Core ML and Core AI start at one.

    Core ML has neither empty tensors nor integers beyond 32 bits.
    """
    given = [np.asarray(x) for x in (*feeds.values(), *right.values())]
    if form == "mlprogram":
        whole = [x for x in given if x.dtype.kind in "iu"]
        least, most = -(2**31), 2**31 - 1
        return all(x.size and x.min() >= least and x.max() <= most for x in whole) and all(
            x.size for x in given
        )
    return form != "aimodel" or all(x.size for x in given[: len(feeds)])


@contextmanager
def _opened(
    form: str, ready: Prepared, proto: onnx.ModelProto
) -> Iterator[dict[str, Callable[[Feeds], Any]]]:
    """Write what was prepared of a model; yield what runs it, by name."""
    place, source = PLACES[FORMATS[form]], ir.from_proto(proto)
    with tempfile.TemporaryDirectory() as folder:
        made = ready.write(Path(folder))
        if form == "tflite":
            # In a child process, which a kernel may end.
            data = made.files[0].read_bytes()
            yield {
                "XNNPACK": lambda feeds: run_tflite(data, feeds),
                "kernels": lambda feeds: run_tflite(data, feeds, xnnpack=False),
            }
            return
        artifact = Artifact(made.format, made.files[0], input_specs(source), output_specs(source))
        extra: dict[str, Any] = {"trial": "off"} if form == "tvm" else {}
        engine = registry.get(place.backend).load(artifact, LoadOptions(extra=extra))
        try:
            yield {place.backend: engine.run}
        finally:
            engine.close()


def _fault(got: Array, want: Array, rtol: float) -> str:
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if want.dtype.kind != "f":
        return "" if np.array_equal(got, want) else f"{got} instead of {want}"
    finite = want[np.isfinite(want)]
    scale = float(np.abs(finite).max()) if finite.size else 0.0
    if np.allclose(got, want, rtol=rtol, atol=rtol * scale, equal_nan=True):
        return ""
    return f"off by {np.nanmax(np.abs(got - want)):.3g} of {scale:.3g}"

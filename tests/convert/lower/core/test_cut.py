"""Slices and borders mean the same for every target, whatever a run decides of them."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeinfer.convert.lower.core.cut import FAR, AxisPad, AxisSlice
from edgeinfer.convert.lower.registry import Refusal
from edgeinfer.types import Array
from tests.conformance.everywhere import lacking, run

LEAST = -(2**63)

SLICES: dict[str, tuple[int, int, int]] = {
    "back": (4, 0, -1),
    "whole back": (-1, LEAST, -1),
    "clamped": (-100, 100, 2),
    "back from before the first": (-100, -200, -1),
    "from both ends": (-4, 4, 1),
    "nothing": (4, 2, 1),
}

PADS = [(1, 2), (-2, 0), (-3, 3), (3, -2), (7, 8), (-1, -2)]
FORMS = list(itertools.product(("constant", "reflect", "edge", "wrap"), PADS))


def _model(kind: str) -> tuple[onnx.ModelProto, dict[str, Array], dict[str, Array]]:
    """Return one node a form, what goes in and what comes out; ``kind`` says what a run decides."""
    x = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
    feeds, right = {"x": x}, dict[str, Array]()
    lines, known = list[str](), list[str]()

    def vector(name: str, *values: int) -> str:
        if kind == "bounds":
            feeds[name] = np.array(values, np.int64)
        else:
            known.append(f"int64[{len(values)}] {name} = {{{', '.join(map(str, values))}}}")
        return name

    for i, (start, stop, step) in enumerate(SLICES.values()):
        bounds = [vector(f"{n}{i}", v) for n, v in (("b", start), ("e", stop))]
        lines.append(f"s{i} = Slice(x, {bounds[0]}, {bounds[1]}, axis, t{i})")
        known.append(f"int64[1] t{i} = {{{step}}}")
        start = max(start, -5) if step < 0 else start
        right[f"s{i}"] = x[:, slice(start, stop, step)]
    for i, (mode, (before, after)) in enumerate(FORMS):
        lines.append(f'p{i} = Pad<mode="{mode}">(x, {vector(f"a{i}", before, after)}, , axis)')
        kept = x[:, max(-before, 0) : 5 - max(-after, 0)]
        grown = [(0, 0), (max(before, 0), max(after, 0)), (0, 0)]
        right[f"p{i}"] = np.pad(kept, grown, mode=mode)  # type: ignore[call-overload]
    size = "n" if kind == "size" else "5"
    ends = [f"int64[{len(v)}] {n}" for n, v in feeds.items() if n != "x"]
    taken = ", ".join([f"float[2,{size},3] x", *ends])
    text = (
        f'<ir_version: 10, opset_import: ["" : 21]> g ({taken})'
        f" => ({', '.join(f'float[2,d{n},3] {n}' for n in right)})"
        f" <{', '.join(['int64[1] axis = {1}', *known])}> {{ {' '.join(lines)} }}"
    )
    model = ir.to_proto(ir.from_onnx_text(text))
    for node in model.graph.node:
        node.name = node.output[0]
    return model, feeds, right


@pytest.mark.sample(each=("kind", "place"))
@pytest.mark.parametrize("kind", ["known", "size", "bounds"])
@pytest.mark.parametrize("place", ["litert", "coreml", "coreai", "tvm"])
def test_every_target_cuts_and_pads(place: str, kind: str) -> None:
    if reason := lacking(place):
        pytest.skip(reason)
    model, feeds, right = _model(kind)
    if place == "coreml":
        # Its integers have 32 bits, and its tensors have elements.
        feeds = {n: np.maximum(v, -FAR) if v.dtype == np.int64 else v for n, v in feeds.items()}
        del right[f"s{list(SLICES).index('nothing')}"]
    if place == "coreai" and kind == "bounds":
        # Core AI's own runtime fails there.
        repeating = {f"p{i}" for i, (m, _) in enumerate(FORMS) if m in ("reflect", "wrap")}
        right = {n: v for n, v in right.items() if n not in repeating}
    found = run(place, model, feeds).outputs
    assert right.keys() <= found.keys()
    for name, want in right.items():
        np.testing.assert_array_equal(found[name], want, err_msg=name)


def test_slices_are_numpys_but_for_a_start_before_the_first() -> None:
    bounds = [*range(-6, 7), LEAST, 2**63 - 1]
    steps = (-3, -1, 1, 2)
    for size, start, stop, step in itertools.product(range(5), bounds, bounds, steps):
        held = [max(-FAR, min(v, FAR)) for v in (start, stop)]
        own = max(start, -size) if step < 0 else start
        taken = AxisSlice(size, 0, held[0], held[1], step).taken
        assert list(taken or ()) == list(range(size))[own:stop:step]


def test_borders_are_of_what_is_left() -> None:
    assert AxisPad(5, 0, -3, 3).sources("wrap").tolist() == [0, 1, 0, 1, 0]
    assert AxisPad(5, 0, 1, -2).sources("reflect").tolist() == [1, 0, 1, 2]
    assert not AxisPad(5, 0, -3, 3).is_short
    with pytest.raises(Refusal, match="without elements"):
        AxisPad(2, 0, -2, 1).sources("edge")

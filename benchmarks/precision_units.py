"""Each kernel of one graph of 8-bit integers by itself: which engine rounds otherwise than exactly?

    python -m benchmarks.precision_units [--tasks efficientnet-lite0] [--samples 1] [--json FILE]

``precision_agree`` says how far whole nets agree; this says where they part. Each unit is cut out
of the graph that is written for an engine and given the same integers, and its result is held
against the same unit in float64, rounded once. Of what is apart, ``--show`` lists some: the step
that came out and what float64 has before it is rounded. Engines are ONNX Runtime, OpenVINO, LiteRT
as it runs by default, and LiteRT without XNNPACK (``litert-plain``).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from benchmarks.precision import TASKS, add_tasks
from benchmarks.precision_agree import ENGINES, shared_limits
from benchmarks.precision_case import Case
from edgeinfer import profiles
from edgeinfer.backends import registry
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.engines import import_litert
from edgeinfer.convert import passes
from edgeinfer.convert.lower import target_for
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.convert.quantize.calibrate.observe import open_session, with_outputs
from edgeinfer.convert.quantize.calibration import Quantizer, Settings
from edgeinfer.convert.quantize.recipe import recipe
from edgeinfer.convert.quantize.units import Unit, lay_out
from edgeinfer.convert.verify.evaluate import Evaluator
from edgeinfer.convert.verify.submodel import extract
from edgeinfer.media.samples import open_data
from edgeinfer.types import Array

PLAIN = "litert-plain"


@dataclass(frozen=True, slots=True)
class Parting:
    """What one engine makes of one unit.

    Attributes:
        unit: by name.
        op: its operator.
        engine: that ran it.
        values: how many it gives.
        apart: how many are not the exact result, rounded once.
        furthest: in steps.
    """

    unit: str
    op: str
    engine: str
    values: int
    apart: int
    furthest: float

    def line(self) -> str:
        """Return one line for a terminal."""
        share = self.apart / self.values
        return (
            f"{self.engine:14} {self.op:18} {self.unit[-60:]:60} {self.apart:7} of {self.values} "
            f"({share:.3%}) apart, at most {self.furthest:.0f}"
        )


def partings(case: Case, samples: int, show: int = 0) -> list[Parting]:
    """Run every unit of a case by itself on every engine."""
    model = passes.normalise(ir.load(case.model)).model
    specs = passes.input_specs(model)
    limits = shared_limits()
    quantizer = Quantizer(model, recipe("static_wi8_ai8"), Settings(force=True))
    quantizer.calibrate(open_data(case.feeds, specs), [*limits.values()], specs)
    written = {e: quantizer.write(limit) for e, limit in limits.items()}
    units = [u for u in lay_out(quantizer.model, limits["litert"]).units if u.kind != "move"]
    feeds = case.tests[:: max(1, len(case.tests) // samples)][:samples]
    whole = written["onnxruntime"].model
    seen = _seen(whole, units, feeds)
    scales = written["onnxruntime"].scales
    found = []
    for unit in units:
        result = unit.result.name or ""
        given = [{_source(v): s[_source(v)] for v in unit.reads} for s in seen]
        exact = _exact(_part(whole, unit), given)
        for engine in (*ENGINES, PLAIN):
            part = _part(written[engine.removesuffix("-plain")].model, unit)
            actual = _run(part, engine, given)
            steps = np.abs(actual.astype(np.float64) - exact) / scales[result].scale
            apart = int(np.sum(steps > 0.5))
            row = Parting(unit.name, unit.op, engine, steps.size, apart, float(steps.max()))
            if apart:
                print(row.line(), flush=True)
                before = _exact(_part(whole, unit, rounded=False), given) if show else exact
                for place in map(tuple, np.argwhere(steps > 0.5)[:show]):
                    got, want = (float(a[place]) / scales[result].scale for a in (actual, before))
                    print(f"    {[int(i) for i in place]}: {got:.3f} for {want:.6f}", flush=True)
            found.append(row)
    return found


def _source(value: ir.Value) -> str:
    return value.name or ""


def _seen(model: ir.Model, units: Sequence[Unit], feeds: Sequence[Any]) -> list[dict[str, Array]]:
    """Return what goes into each unit: numbers that integers stand for."""
    names = sorted({_source(v) for u in units for v in u.reads})
    read = {n: _rounded(model, n) for n in names}
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(with_outputs(model, sorted({*read.values()})), Path(folder))
        found = [
            dict(zip(read, session.run([*read.values()], dict(f)), strict=True)) for f in feeds
        ]
        del session
    return found


def _rounded(model: ir.Model, name: str) -> str:
    """Return the name of a value after its rounding; an output of the model took over the name."""
    made = {o.name for n in model.graph for o in n.outputs}
    return f"{name}.dq" if f"{name}.dq" in made else name


def _part(model: ir.Model, unit: Unit, *, rounded: bool = True) -> ir.Model:
    """Cut a unit out, from what is rounded before it to what is rounded after it."""
    values = {o.name: o for n in model.graph for o in n.outputs}
    values |= {v.name: v for v in model.graph.inputs}
    before = [values[_source(v)] for v in unit.reads]
    after = values[_rounded(model, _source(unit.result))]
    if not rounded and after.name != unit.result.name:
        after = values[_source(unit.result)]
    part = extract(model, before, [after], {})
    part.opset_imports.update(model.opset_imports)
    return part


def _exact(part: ir.Model, given: Sequence[Mapping[str, Array]]) -> Array:
    evaluator = Evaluator(part, wide=True)
    return np.stack([np.asarray(next(iter(evaluator.run(g).values()))) for g in given])


def _run(part: ir.Model, engine: str, given: Sequence[Mapping[str, Array]]) -> Array:
    profile, format = ENGINES[engine.removesuffix("-plain")]
    with tempfile.TemporaryDirectory() as folder:
        options = LowerOptions("fp32")
        lowered = target_for(format).lower(part, profiles.load(profile), options, Path(folder))
        if engine == PLAIN:
            return _plain(lowered.files[0], given)
        specs = passes.input_specs(part), passes.output_specs(part)
        artifact = Artifact(format, lowered.files[0], *specs)
        executable = registry.get(engine).load(artifact, LoadOptions(threads=1))
        try:
            runs = [next(iter(executable.run(dict(g)).values())) for g in given]
            return np.stack([np.array(r) for r in runs])
        finally:
            executable.close()


def _plain(path: Path, given: Sequence[Mapping[str, Array]]) -> Array:
    """Run a file with LiteRT's own kernels alone."""
    litert = import_litert()
    kinds = litert.OpResolverType
    interpreter = litert.Interpreter(
        str(path), experimental_op_resolver_type=kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    )
    runner = interpreter.get_signature_runner()
    return np.stack([next(iter(runner(**dict(g)).values())) for g in given])


def main() -> int:
    """Compare the engines unit by unit."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_tasks(parser)
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--show", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.tasks:
        found = partings(TASKS[name](options.work), options.samples, options.show)
        for engine in (*ENGINES, PLAIN):
            own = [r for r in found if r.engine == engine]
            apart, values = sum(r.apart for r in own), sum(r.values for r in own)
            worst = max((r.furthest for r in own), default=0.0)
            print(
                f"{name} {engine}: {apart} of {values} apart in {len(own)} units, "
                f"at most {worst:.0f}"
            )
        rows += found
        if options.json:
            options.json.write_text(json.dumps([asdict(r) for r in rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``edgeinfer inspect``."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from edgeinfer.cli.files import write_bytes
from edgeinfer.cli.models import TRUST_SOURCE, named_model
from edgeinfer.cli.output import Output, milliseconds, output_options, size, table
from edgeinfer.cli.trust import trust_options
from edgeinfer.errors import UsageError

if TYPE_CHECKING:
    from edgeinfer.bundle.archive import Bundle
    from edgeinfer.bundle.manifest import Manifest
    from edgeinfer.cli.table import Table
    from edgeinfer.heads import Head
    from edgeinfer.types import Preprocessing


@click.command()
@click.argument("path", metavar="MODEL|BUNDLE")
@click.option("--report", metavar="FILE", help="Write the bundle's report, .html or .json.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option("--layers", is_flag=True, help="Show error and time of each layer, as converted.")
@TRUST_SOURCE
@trust_options(runs=False)
@output_options
def inspect(
    path: str,
    report: str | None,
    overwrite: bool,
    layers: bool,
    trust_source: bool,
    trust: dict[str, Any],
    out: Output,
) -> None:
    """Show inputs, outputs, operators, sizes and precision.

    Of a bundle also which parts of it are machine code, and whether that may run here. Nothing in
    a bundle is run.
    """
    from edgeinfer.bundle.storage import is_bundle

    if is_bundle(Path(path)):
        from edgeinfer.bundle.archive import Bundle

        with Bundle.open(path, **trust) as bundle:
            if report is not None:
                _save_report(bundle, Path(report), overwrite)
                out.remark(f"wrote {report}")
            manifest = bundle.manifest
            conversion = bundle.report() or {}
            if layers and not conversion.get("layers"):
                raise UsageError(f"{path}: was converted without --layers; convert it with that")
            out.result(
                {
                    "kind": "bundle",
                    **manifest.to_json(),
                    "trust": _trust(bundle),
                    "report": conversion,
                },
                lambda: (
                    _layers_view(conversion["layers"])
                    if layers
                    else _bundle_view(bundle.location, manifest, conversion, _trust_line(bundle))
                ),
            )
        return
    if report is not None or layers:
        raise UsageError(f"{path}: only a bundle has a report; convert the model first")
    from edgeinfer.convert.sniff import is_llm

    if is_llm(path):
        _language_model(path, trust_source, out)
        return
    named = named_model(path, trust_source=trust_source)
    with out.progress() as progress:
        if progress is not None:
            progress("read the model", None)
        from edgeinfer.convert.model_info import inspect as inspected

        found = inspected(named.model, **named.arguments())
    data = {"kind": "model", **_plain(found)}
    out.result(data, lambda: _model_view(data))


def _layers_view(found: dict[str, Any]) -> Iterator[str | Table]:
    columns = ("layer", "operator", ">signal to error", ">largest error", ">us", "step")
    for id, one in found.items():
        engine = f"{one['engine']} ({one['device']})" if one["engine"] else "no engine"
        clock = f", times by {one['clock']}" if one["clock"] else ""
        yield f"{id}: errors in {engine} on vector {one['vector']}{clock}"
        yield table(columns, [_layer(row) for row in one["rows"]])
        yield from (f"note: {line}" for line in one["notes"])
        for role, total in one["own"].items():
            yield f"the engine's own: {total['count']} of kind {role}, {total['us']:.1f} us"
        yield ""


def _layer(row: dict[str, Any]) -> tuple[str, ...]:
    db, largest, us = row["sqnr_db"], row["max_rel"], row["us"]
    return (
        row["node"],
        row["op"],
        "-" if db is None else db if isinstance(db, str) else f"{db:.0f} dB",
        "-" if largest is None else f"{largest:.2g}",
        "" if us is None else f"{us:.1f}",
        row["step"],
    )


def _plain(record: Any) -> dict[str, Any]:
    return dataclasses.asdict(record)


def _language_model(path: str, trust_source: bool, out: Output) -> None:
    from edgeinfer.convert.model_info import inspect as inspected

    data = _plain(inspected(path, trust_source=trust_source))
    family = data.pop("family")

    def view() -> Iterator[str | Table]:
        yield f"{data['name']}: {family} ({data['format']})"
        yield ""
        shown = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "context")
        yield table(("", ">size"), [(name, data["config"][name]) for name in shown])
        yield ""
        rows = [(kind, w["tensors"], size(w["bytes"])) for kind, w in data["weights"].items()]
        yield table(("weights", ">tensors", ">size"), rows)

    out.result({"kind": "language model", **data}, view)


def _save_report(bundle: Bundle, path: Path, overwrite: bool) -> None:
    from edgeinfer.bundle.trust import ENV, PAGE

    if path.suffix not in (".html", ".json"):
        raise UsageError(f"--report {path}: expected a name that ends with .html or .json")
    wanted = f"report{path.suffix}"
    record = next((r for r in bundle.manifest.extra_files if r.path == wanted), None)
    if record is None:
        raise UsageError(f"{bundle.location}: has no {wanted}")
    if wanted == PAGE and not bundle.native.allowed:
        raise UsageError(
            f"{bundle.location}: {PAGE} is a page that a browser runs, and {bundle.native.why}; "
            f"--report {path.with_suffix('.json')} has the numbers; sign it and give the key "
            f"(--trusted), or trust whoever made it ({ENV}=allow)"
        )
    write_bytes(path, bundle.read(record), overwrite=overwrite)


def _model_view(data: dict[str, Any]) -> Iterator[str | Table]:
    opsets = ", ".join(f"{domain or 'ai.onnx'} {v}" for domain, v in data["opset"].items())
    made = f", made by {data['producer']}" if data["producer"] else ""
    yield f"{data['name']}: {data['format']}, opset {opsets}{made}"
    yield ""
    yield table(("", "name", "type", "shape"), _tensor_rows(data["inputs"], data["outputs"]))
    yield ""
    rows = [(op, count) for op, count in data["operators"].items()]
    yield table(("operator", ">count"), [*rows, ("all", data["nodes"])])
    yield ""
    weights = [(dtype, w["tensors"], size(w["bytes"])) for dtype, w in data["weights"].items()]
    yield table(("weights", ">tensors", ">size"), weights) if weights else "no weights"
    yield from (f"note: {line}" for line in data["notes"])


def _tensor_rows(inputs: list[Any], outputs: list[Any]) -> Iterator[tuple[str, ...]]:
    for kind, values in (("input", inputs), ("output", outputs)):
        for value in values:
            shape = value["shape"]
            dims = "any rank" if shape is None else _dims(shape)
            yield kind, value["name"], value["dtype"] or "?", dims


def _dims(shape: list[int | str | None]) -> str:
    return "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"


def _said(record: Preprocessing | Head) -> str:
    """Name a record's kind and what is not as it would be anyway."""
    parts: list[str] = [record.kind]
    for f in dataclasses.fields(record):
        value = getattr(record, f.name)
        if f.name == "kind" or value == f.default:
            continue
        if isinstance(value, tuple):
            nested = any(dataclasses.is_dataclass(v) for v in value)
            value = len(value) if nested else "/".join(map(str, value))
        parts.append(f"{f.name}={value}")
    return ", ".join(parts)


def _trust(bundle: Bundle) -> dict[str, Any]:
    from edgeinfer.bundle.trust import native_parts

    return {
        "digest": bundle.full_digest,
        "signed_by": bundle.signed_by or None,
        "signatures": [{"key": s.key, **s.claims} for s in bundle.signatures_by],
        "native_parts": native_parts(bundle.manifest),
        "native_allowed": bundle.native.allowed,
        "why": bundle.native.why,
    }


def _widened(manifest: Manifest, report: dict[str, Any]) -> set[str]:
    """Return the ids of variants that passed only within a widened budget, of all their targets."""
    from edgeinfer.metrics import WIDENED
    from edgeinfer.runtime.select import sharing

    wide = {
        variant["id"]
        for variant in report.get("variants", ())
        if any(engine["verdict"] == WIDENED for engine in variant["engines"])
    }
    groups = [{v.id for v in group} for group in sharing(manifest.variants)]
    return {ident for group in groups if group & wide for ident in group}


def _trust_line(bundle: Bundle) -> str:
    trust = _trust(bundle)
    signed = f"signed by key {bundle.signed_by}; " if bundle.signed_by else ""
    if not trust["native_parts"]:
        return f"trust: {signed}data only, no machine code"
    may = "may run here" if trust["native_allowed"] else "is left out here"
    parts = ", ".join(trust["native_parts"])
    return f"trust: {signed}machine code in {parts}, which {may}: {trust['why']}"


def _asked(what: str, value: str) -> str:
    """Return what a variant needs of a device or of what its inputs hold, in words."""
    from edgeinfer.bundle.values import KEY, WORDS

    return f"inputs of {WORDS[value]}" if what == KEY and value in WORDS else f"{what}={value}"


def _bundle_view(
    location: Path, manifest: Manifest, report: dict[str, Any], trust: str = ""
) -> Iterator[str | Table]:
    source = manifest.source
    yield f"{location}: {manifest.name}, from {source.name} ({source.format})"
    yield ""
    data = manifest.to_json()
    yield table(("", "name", "type", "shape"), _tensor_rows(data["inputs"], data["outputs"]))
    for name, record in manifest.preprocessing.items():
        yield f"input {name!r} takes: {_said(record)}"
    if manifest.head is not None:
        yield f"outputs mean: {_said(manifest.head)}"
    for state in manifest.states:
        yield f"state {state.input!r}: output {state.output!r} of the run before"
    if manifest.labels:
        yield f"{len(manifest.labels)} labels, {manifest.labels[0]!r} first"
    yield ""
    columns = ("variant", "precision", ">size", "engines", ">median when made")
    rows = [
        (
            v.id,
            v.precision,
            size(v.size_bytes),
            ", ".join(f"{e.backend}{e.version}" for e in v.engines),
            milliseconds(v.latency_ms),
        )
        for v in manifest.variants
    ]
    yield table(columns, rows)
    if manifest.made_on:
        yield f"made, and timed, on {manifest.made_on}; '-': not timed on a device of that kind"
    from edgeinfer.metrics import WIDENED

    wide = _widened(manifest, report)
    for v in manifest.variants:
        if v.unverified:
            yield f"NOT VERIFIED: {v.id}: {v.unverified}"
        if v.id in wide:
            yield f"{v.id}: {'numbers ' if v.unverified else ''}{WIDENED}"
        for name, stored in v.stored.items():
            yield f"{v.id}: {name!r} is {stored} in the file"
        if v.consent:
            file = f"the same files, computed in {v.computed_in}; " if v.computed_in else ""
            yield f"{v.id}: {file}runs where {v.consent} is allowed (--allow {v.consent})"
        if v.constraints:
            yield f"{v.id}: asks for {', '.join(_asked(*c) for c in v.constraints.items())}"
    for name in manifest.parts:
        held = sum(f.size_bytes for f in manifest.extra_files if f.path.startswith(f"{name}/"))
        yield f"{name}: a bundle of its own, {size(held)}"
    yield ""
    origins = Counter(v.origin for v in manifest.vectors)
    yield "test vectors: " + (", ".join(f"{n} {o}" for o, n in origins.items()) or "none")
    if trust:
        yield trust
    yield "made with: " + ", ".join(f"{tool} {v}" for tool, v in manifest.tools.items())
    if report:
        yield f"full report: edgeinfer inspect {quote(str(location))} --report report.html"

"""ONNX files and in-memory models."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Sequence
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from edgeinfer.bounded import open_file
from edgeinfer.bundle.manifest import SourceRecord
from edgeinfer.convert.sources.external import attach, digest, external_tensors
from edgeinfer.convert.sources.imputers import settle_imputers
from edgeinfer.convert.sources.limits import check_limits, check_numbers
from edgeinfer.convert.sources.lists import cut_lists
from edgeinfer.convert.sources.mapped import ByteSpan, attach_spans, without_weights
from edgeinfer.convert.sources.old import OLDEST_OPSET, raised
from edgeinfer.convert.sources.quiet import quiet_logging
from edgeinfer.convert.sources.repair import repair
from edgeinfer.convert.sources.tabular import (
    DOMAIN,
    cut_maps,
    has_maps,
    number_strings,
    solve_known,
    with_key_types,
)
from edgeinfer.convert.sources.text import is_damaged, mend
from edgeinfer.errors import Remarks, SourceError

Read = tuple[ir.Model, SourceRecord, Remarks, tuple[str, ...]]
"""A model, where it came from, what was repaired, and the names of its classes, if it has them."""


def read_file(path: Path) -> Read:
    """Read an ``.onnx`` file; weights in other files stay there until they are touched.

    Raises:
        SourceError: the file is damaged, of an opset that is not supported, or its weights are
            missing or outside its folder.
    """
    proto, spans = _parse(path)
    notes, mended = Remarks(), mend(proto)
    named = cut_maps(proto, str(path), notes) if has_maps(proto) else ()
    model = _deserialise(proto, str(path), notes)
    external = attach(model, path.parent, str(path))
    attach_spans(model, path, spans)
    labels = _finish(model, str(path), notes, mended) or named
    return model, SourceRecord("onnx", path.name, digest(path, external)), notes, labels


def read_model(given: onnx.ModelProto | ir.Model) -> Read:
    """Take a model that is in memory already; the caller's object is not modified.

    Raises:
        SourceError: as for a file, or its weights are in files and it does not know where.
    """
    mended: list[str] = []
    if isinstance(given, onnx.ModelProto) and is_damaged(given):
        own = onnx.ModelProto()
        own.CopyFrom(given)
        given, mended = own, mend(own)
    name = given.graph.name or "model"
    notes, named = Remarks(), tuple[str, ...]()
    if isinstance(given, onnx.ModelProto) and has_maps(given):
        own = onnx.ModelProto()
        own.CopyFrom(given)
        given, named = own, cut_maps(own, name, notes)
    model = (
        _deserialise(given, name, notes) if isinstance(given, onnx.ModelProto) else given.clone()
    )
    homes = {str(tensor.base_dir) for tensor in external_tensors(model)}
    if "" in homes:
        raise SourceError(
            f"{name}: its weights are in other files and the model does not know in which folder; "
            "give the path of the .onnx file"
        )
    if len(homes) > 1:
        raise SourceError(f"{name}: its weights are in several folders: {', '.join(sorted(homes))}")
    for home in homes:
        attach(model, Path(home), name)
    labels = _finish(model, name, notes, mended) or named
    return model, SourceRecord("onnx", name, fingerprint(model)), notes, labels


def fingerprint(model: ir.Model) -> str:
    """SHA-256 of a model without a file: its opsets, nodes, interface and weights.

    Weights are hashed one at a time, so a model beyond protobuf's 2 GB needs no second copy.
    """
    state = hashlib.sha256(repr(sorted(model.opset_imports.items())).encode())
    for value in (*model.graph.inputs, *model.graph.outputs):
        state.update(ir.serde.serialize_value(value).SerializeToString(deterministic=True))
    for node in model.graph:
        state.update(ir.serde.serialize_node(node).SerializeToString(deterministic=True))
    for function in model.functions.values():
        state.update(ir.serde.serialize_function(function).SerializeToString(deterministic=True))
    for name, value in sorted(model.graph.initializers.items()):
        tensor = value.const_value
        if tensor is not None:
            state.update(f"{name} {tensor.dtype.name} {tensor.shape}".encode())
            state.update(tensor.tobytes())
    return state.hexdigest()


def _parse(path: Path) -> tuple[onnx.ModelProto, dict[str, ByteSpan]]:
    """Parse from a memory map; large weights stay in the file, and are named by where they are."""
    size = path.stat().st_size
    if size >= 1 << 31:
        raise SourceError(
            f"{path}: {size / 2**30:.1f} GB in one file, protobuf reads less than 2 GB; save it "
            "with external data: onnx.save(model, path, save_as_external_data=True)"
        )
    with (
        open_file(path) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        memoryview(data) as view,
    ):
        # onnx_ir maps no file that has hard links (see external.py).
        light = without_weights(data) if path.stat().st_nlink == 1 else None
        message, spans = light or (view, {})
        try:
            return onnx.ModelProto.FromString(message), spans
        except DecodeError as error:
            raise SourceError(
                f"{path}: a damaged ONNX model ({error}); write or download it again"
            ) from error


def _deserialise(proto: onnx.ModelProto, name: str, notes: Remarks) -> ir.Model:
    proto, opsets = with_key_types(proto), _lifted(proto)
    if 0 < opsets.get("", OLDEST_OPSET) < OLDEST_OPSET:
        check_numbers(_graph(proto, name), name)
        proto = raised(proto, opsets[""], name, notes)
        opsets = _lifted(proto)
    _check_opsets(opsets, name)
    if proto.graph.sparse_initializer:
        raise SourceError(f"{name}: sparse initializers are not supported; make them dense")
    model = _graph(proto, name)
    model.opset_imports.update(opsets)
    return model


def _graph(proto: onnx.ModelProto, name: str) -> ir.Model:
    try:
        with quiet_logging():
            return ir.serde.deserialize_model(proto)
    except Exception as error:
        # A damaged graph makes onnx_ir raise almost anything; the deepest cause says the most.
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = str(cause).strip().splitlines() or [type(cause).__name__]
        raise SourceError(f"{name}: an invalid ONNX model: {reason[0]}") from error


def _lifted(proto: onnx.ModelProto) -> dict[str, int]:
    """Versions of a model's domains; an old one as the oldest we take, if that means the same.

    Tabular models leave the default domain out, or state its first version.
    """
    opsets = {i.domain: i.version for i in proto.opset_import}
    main = [d for d in ("", "ai.onnx") if d in opsets]
    stated = opsets[main[0]] if main else OLDEST_OPSET
    used = {n.op_type for n in proto.graph.node if n.domain in ("", "ai.onnx")}
    tabular = any(n.domain == DOMAIN for n in proto.graph.node)
    if stated < OLDEST_OPSET and tabular and all(_is_same(op, stated) for op in used):
        opsets[main[0]] = OLDEST_OPSET
    elif not main and not used:
        opsets[""] = OLDEST_OPSET
    return opsets


def _is_same(op: str, version: int) -> bool:
    try:
        schemas = [onnx.defs.get_schema(op, v) for v in (version, OLDEST_OPSET)]
    except onnx.defs.SchemaError:
        return False
    return bool(schemas[0].since_version == schemas[1].since_version)


def _finish(model: ir.Model, name: str, notes: Remarks, mended: Sequence[str]) -> tuple[str, ...]:
    """Put a model right in place; returns the strings that numbers stand for now."""
    _check_opsets(model.opset_imports, name)
    check_limits(model, name)
    if mended:
        shown = ", ".join(repr(text) for text in mended[:3])
        notes.add(f"{len(mended)} texts are no UTF-8; their bytes are written out: {shown}")
    settle_imputers(model, notes)
    cut_lists(model, notes)
    repair(model, notes, name)
    solve_known(model, notes)
    return number_strings(model, notes)


def _check_opsets(opsets: dict[str, int], name: str) -> None:
    newest = onnx.defs.onnx_opset_version()
    for domain in ("", "ai.onnx"):
        version = opsets.get(domain)
        if version is None:
            continue
        if version < OLDEST_OPSET:
            raise SourceError(
                f"{name}: opset {version}, supported are {OLDEST_OPSET} to {newest}; export it "
                "again with a newer opset, or give the file, which is raised"
            )
        if version > newest:
            raise SourceError(
                f"{name}: opset {version}, supported are {OLDEST_OPSET} to {newest}; export it "
                f"with an older opset, or install an onnx newer than {onnx.__version__}"
            )

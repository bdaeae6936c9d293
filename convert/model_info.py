"""What a model or a bundle consists of, without converting or running anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.manifest import Manifest
from edgeinfer.bundle.storage import is_bundle
from edgeinfer.convert.sources.sniff import is_llm

if TYPE_CHECKING:
    from edgeinfer.convert.sources import Source


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """An input or output as the model declares it.

    Attributes:
        name: of the value.
        dtype: NumPy's name, or ``string``; None where nothing is said.
        shape: sizes; a name or None where one is open; None altogether for any rank.
    """

    name: str
    dtype: str | None
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model consists of.

    Attributes:
        name: of the file.
        format: it is in.
        sha256: of the file.
        opset: version by domain.
        ir_version: of the ONNX file.
        producer: tool that wrote it, and its version.
        inputs: as declared, without those that have a default.
        outputs: as declared.
        nodes: how many there are, those of subgraphs included.
        operators: nodes by operator, most frequent first.
        weights: number of tensors and bytes by element type.
        notes: what was repaired when it was read.
    """

    name: str
    format: str
    sha256: str
    opset: Mapping[str, int]
    ir_version: int | None
    producer: str
    inputs: tuple[ValueInfo, ...]
    outputs: tuple[ValueInfo, ...]
    nodes: int
    operators: Mapping[str, int]
    weights: Mapping[str, Mapping[str, int]]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        count = f"{self.nodes} nodes of {len(self.operators)} operators"
        return f"<ModelInfo {self.name}: {self.format}, {count}>"


@dataclass(frozen=True, slots=True)
class LanguageModelInfo:
    """What a language model consists of.

    Attributes:
        name: of the file or folder.
        format: it is in.
        family: of the architecture.
        config: sizes of the architecture by name.
        weights: number of tensors and bytes by type of storage.
    """

    name: str
    format: str
    family: str
    config: Mapping[str, Any] = field(repr=False)
    weights: Mapping[str, Mapping[str, int]] = field(repr=False)


def inspect(
    model: Any, *, example_inputs: Any = None, dynamic_shapes: Any = None, **opening: Any
) -> ModelInfo | LanguageModelInfo | Manifest:
    """Say what a model or a bundle consists of; nothing in it is converted or run.

    Args:
        model: path of a bundle or of a language model, or whatever ``edgeinfer.export`` takes.
        example_inputs: of a PyTorch module.
        dynamic_shapes: of a PyTorch module.
        **opening: how a bundle is opened, as ``Bundle.open`` takes it.

    Returns:
        The manifest of a bundle, and what was found in a model.

    Raises:
        BundleError: the bundle is damaged.
        SourceError: the model cannot be read.
    """
    if isinstance(model, str | Path) and is_bundle(Path(model)):
        with Bundle.open(model, **opening) as bundle:
            return bundle.manifest
    if is_llm(model):
        return _language_model(Path(model))
    from edgeinfer.convert import sources

    return model_info(
        sources.read(model, example_inputs=example_inputs, dynamic_shapes=dynamic_shapes)
    )


def _language_model(path: Path) -> LanguageModelInfo:
    from edgeinfer.bundle.codec import encode
    from edgeinfer.convert.llm import source

    given = source.read(path)
    config = given.config
    return LanguageModelInfo(
        given.path.name, given.format, config.family, encode(config), source.about(given)
    )


def model_info(source: Source) -> ModelInfo:
    """Say what a model consists of that was read."""
    import onnx_ir as ir

    model = source.model
    counts = Counter(
        (f"{n.domain}::" if n.domain else "") + n.op_type for g in model.graphs() for n in g
    )
    weights: dict[str, dict[str, int]] = {}
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None:
                _count(weights, tensor)
        for node in graph:
            # Some exporters write weights as nodes.
            if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
                for value in node.outputs:
                    tensor = ir.convenience.get_const_tensor(value)
                    if tensor is not None:
                        _count(weights, tensor)
    initializers = set(model.graph.initializers)
    return ModelInfo(
        name=source.record.name,
        format=source.record.format,
        sha256=source.record.sha256,
        opset=dict(model.opset_imports),
        ir_version=model.ir_version,
        producer=" ".join(filter(None, (model.producer_name, model.producer_version))),
        inputs=tuple(_value(v) for v in model.graph.inputs if v.name not in initializers),
        outputs=tuple(_value(v) for v in model.graph.outputs),
        nodes=sum(counts.values()),
        operators=dict(counts.most_common()),
        weights=weights,
        notes=tuple(source.notes.lines),
    )


def _count(weights: dict[str, dict[str, int]], tensor: Any) -> None:
    entry = weights.setdefault(str(_dtype(tensor.dtype)), {"tensors": 0, "bytes": 0})
    entry["tensors"] += 1
    entry["bytes"] += tensor.nbytes


def _value(value: Any) -> ValueInfo:
    shape = value.shape
    dims = None if shape is None else tuple(d if isinstance(d, int) else d.value for d in shape)
    return ValueInfo(value.name, _dtype(value.dtype), dims)


def _dtype(dtype: Any) -> str | None:
    """Return NumPy's name, as a manifest has it."""
    if dtype is None:
        return None
    return "string" if dtype.name == "STRING" else str(dtype.numpy().name)

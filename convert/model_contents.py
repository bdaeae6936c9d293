"""What was read of a model, counted: operators, weights, inputs and outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from edgeinfer.bundle.codec import encode
from edgeinfer.convert import sources
from edgeinfer.convert.llm import source, tokenizer
from edgeinfer.convert.llm.adapters import named_adapters
from edgeinfer.convert.model_info import LanguageModelInfo, ModelInfo, ValueInfo
from edgeinfer.convert.sources import Source


def contents(path: Path) -> ModelInfo:
    """Say what a model in a file consists of."""
    return model_info(sources.read(path))


def whole_language_model(path: Path, text_only: bool, adapters: Mapping[str, Path]) -> None:
    """Read what a conversion reads of a language model and its adapters, but for the weights."""
    given = source.read(path, text_only)
    tokenizer.files(given)
    named_adapters(adapters, given.config)


def language_model(path: Path) -> LanguageModelInfo:
    """Say what a language model consists of."""
    # A vision part is not among what is said, and may be one that does not convert.
    given = source.read(path, text_only=True)
    config = given.config
    return LanguageModelInfo(
        given.path.name, given.format, config.family, encode(config), source.about(given)
    )


def model_info(source: Source) -> ModelInfo:
    """Say what a model consists of that was read."""
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

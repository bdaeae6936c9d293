"""What a model or a bundle consists of, without converting or running anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, cast

from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.manifest import Manifest
from edgeinfer.bundle.storage import is_bundle
from edgeinfer.convert.late import late
from edgeinfer.convert.sniff import is_llm
from edgeinfer.records import dataclass


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """An input or output as the model declares it.

    Attributes:
        name: Name of the value.
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
        name: Name of the file.
        format: it is in.
        sha256: Sha256 of the file.
        opset: version by domain.
        ir_version: IR version of the ONNX file.
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
        name: Name of the file or folder.
        format: it is in.
        family: Family of the architecture.
        config: sizes of the architecture by name.
        weights: number of tensors and bytes by type of storage.
    """

    name: str
    format: str
    family: str
    config: Mapping[str, Any] = field(repr=False)
    weights: Mapping[str, Mapping[str, int]] = field(repr=False)


def inspect(
    model: Any,
    *,
    example_inputs: Any = None,
    dynamic_shapes: Any = None,
    trust_source: bool = False,
    **opening: Any,
) -> ModelInfo | LanguageModelInfo | Manifest:
    """Say what a model or a bundle consists of; nothing in it is converted or run.

    Args:
        model: path of a bundle or of a language model, or whatever ``edgeinfer.export`` takes.
        example_inputs: Example inputs of a PyTorch module.
        dynamic_shapes: Dynamic shapes of a PyTorch module.
        trust_source: read a file without bounds of memory and time, which a stranger's needs.
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
    is_text = is_llm(model)
    if is_text or (isinstance(model, str | Path) and Path(model).exists() and not example_inputs):
        kind = LanguageModelInfo if is_text else ModelInfo
        task, path = "look at a language model" if is_text else "inspect", Path(model)
        worker = late("pipeline.worker")
        looked = worker.read_apart(task, kind, path, files=[path], trusted=trust_source)
        return cast("ModelInfo | LanguageModelInfo", looked)
    source = late("sources").read(
        model, example_inputs=example_inputs, dynamic_shapes=dynamic_shapes
    )
    contents: ModelInfo = late("model_contents").model_info(source)
    return contents

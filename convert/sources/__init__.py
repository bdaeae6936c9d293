"""Sources: a model in any supported format becomes one ``onnx_ir.Model``.

The graph library is imported when a file is known to be one that is read.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer.convert.sniff import sniff
from edgeinfer.errors import Remarks, SourceError, UsageError
from edgeinfer.records import dataclass
from edgeinfer.types import Preprocessing, TensorSpec

if TYPE_CHECKING:
    import onnx_ir as ir

    from edgeinfer.bundle.manifest import SourceRecord
    from edgeinfer.convert.sources.original import Original


@dataclass(slots=True)
class Source:
    """A model as it was read.

    Attributes:
        model: the graph; large weights stay on disk until they are touched.
        record: where it came from.
        notes: what had to be repaired.
        original: the file itself, where the engine of its format says what the model computes;
            None where the graph says it.
        preprocessing: how images and recordings become inputs, as the file says it.
        labels: class names, likewise.
        layouts: Layouts of inputs and outputs whose channels were moved, e.g. ``NHWC``.
    """

    model: ir.Model
    record: SourceRecord
    notes: Remarks = field(default_factory=Remarks)
    original: Original | None = None
    preprocessing: dict[str, Preprocessing] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    layouts: dict[str, str] = field(default_factory=dict)

    def move_channels(self, last: Sequence[str], first: Sequence[str]) -> None:
        """Change the layout of inputs and outputs; see ``channels.move_channels``.

        Raises:
            UsageError: a name is unknown, or has no such axes.
        """
        from edgeinfer.convert.sources.channels import letters, move_channels

        moved = move_channels(self.model, last, first)
        if self.original is not None:
            self.original = replace(self.original, moved=moved)
        for name, perm in moved.items():
            shown = letters(len(perm), name in last)
            if shown is not None:
                self.layouts[name] = shown
            self.notes.add(f"{name!r} has its channels {'last' if name in last else 'first'} now")

    def take_pixels(self, names: Sequence[str], records: Mapping[str, Preprocessing]) -> None:
        """Let inputs take pixels as they are; see ``pictures.take_pixels``.

        Raises:
            UsageError: a name is unknown, or is no image.
        """
        from edgeinfer.convert.sources.image_inputs import take_pixels

        if names and self.original is not None:
            raise UsageError("images: the input of a .tflite file keeps what the file takes")
        take_pixels(self.model, names, records)
        for name in names:
            self.notes.add(f"{name!r} takes pixels of 0 to 255 now")

    def exchange_halves(self, names: Sequence[str]) -> None:
        """Let inputs and outputs be half precision; see ``halves.exchange_halves``.

        Raises:
            UsageError: a name is unknown, or is no float.
        """
        from edgeinfer.convert.sources.halves import exchange_halves

        if names and self.original is not None:
            raise UsageError("io dtype: the ends of a .tflite file keep the types that it has")
        if names:
            found = exchange_halves(self.model, names)
            self.notes.add(f"float16 instead of float32: {', '.join(map(repr, found))}")

    def settle_noise(self, mode: str, shapes: Mapping[str, Sequence[int | None]]) -> None:
        """Replace what draws random numbers; see ``noise.settle_noise``.

        Raises:
            UsageError: a draw cannot be replaced so.
        """
        from edgeinfer.convert.sources.noise import settle_noise

        for line in settle_noise(self.model, mode, shapes):
            self.notes.add(line)

    def with_layouts(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        """Return descriptions with the layouts that were chosen."""
        return tuple(replace(s, layout=self.layouts.get(s.name, s.layout)) for s in specs)


def read(
    model: object,
    *,
    example_inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    dynamic_shapes: Mapping[str, Mapping[int, Any]] | None = None,
    name: str | None = None,
    signature: str | None = None,
) -> Source:
    """Read a model.

    Args:
        model: path of an ``.onnx``, ``.pt2`` or ``.tflite`` file, an ``onnx.ModelProto``,
            an ``onnx_ir.Model``, a ``torch.nn.Module`` or a ``torch.export.ExportedProgram``.
        example_inputs: for a module: its arguments, in order or by name.
        dynamic_shapes: for PyTorch: input name to ``{axis: name of the size}``; equal names mean
            equal sizes. In an exported program the sizes are fixed already and only get names.
        name: recorded instead of the file's or the class's name.
        signature: for a ``.tflite`` file with several: which one.

    Raises:
        SourceError: the model cannot be read; the message says what it is and what to do.
        UsageError: the arguments do not fit the kind of model.
        NotAvailableError: PyTorch is needed and not installed.
    """
    source = _dispatch(model, example_inputs, dynamic_shapes, signature)
    if name is not None:
        source.record = replace(source.record, name=name)
    return source


def _dispatch(
    model: object,
    example_inputs: Mapping[str, Any] | Sequence[Any] | None,
    dynamic_shapes: Mapping[str, Mapping[int, Any]] | None,
    signature: str | None,
) -> Source:
    kind = sniff(Path(model)) if isinstance(model, str | Path) else None
    if signature is not None and kind != "tflite":
        raise UsageError("signature is for .tflite files; this model has none")
    if isinstance(model, str | Path):
        path = Path(model)
        if kind == "tflite":
            from edgeinfer.convert.sources import tflite as tflite_source

            _refuse_torch_arguments(example_inputs, dynamic_shapes, "a TFLite")
            read_back = tflite_source.read_file(path, signature)
            said = read_back.carried
            return Source(
                read_back.model,
                read_back.record,
                read_back.notes,
                read_back.original,
                said.preprocessing,
                said.labels,
            )
        if kind == "pt2":
            from edgeinfer.convert.sources import torch as torch_source

            _refuse_examples(example_inputs, "a .pt2 file")
            return Source(*torch_source.read_pt2(path, dynamic_shapes))
        from edgeinfer.convert.sources import onnx as onnx_source

        _refuse_torch_arguments(example_inputs, dynamic_shapes)
        return _with_labels(*onnx_source.read_file(path))
    import onnx_ir as ir
    from onnx import ModelProto

    if isinstance(model, ModelProto | ir.Model):
        from edgeinfer.convert.sources import onnx as onnx_source

        _refuse_torch_arguments(example_inputs, dynamic_shapes)
        return _with_labels(*onnx_source.read_model(model))
    # Whoever holds a module has imported torch; nobody else has to wait for it.
    torch = sys.modules.get("torch")
    if torch is not None:
        from edgeinfer.convert.sources import torch as torch_source

        if isinstance(model, torch.export.ExportedProgram):
            _refuse_examples(example_inputs, "an ExportedProgram")
            return Source(*torch_source.read_program(model, dynamic_shapes))
        if isinstance(model, torch.nn.Module):
            return Source(*torch_source.read_module(model, example_inputs, dynamic_shapes))
    raise SourceError(
        f"expected a path, onnx.ModelProto, onnx_ir.Model, torch.nn.Module or ExportedProgram, "
        f"received {type(model).__name__}"
    )


def _with_labels(
    model: ir.Model, record: SourceRecord, notes: Remarks, labels: tuple[str, ...]
) -> Source:
    return Source(model, record, notes, labels=labels)


def _refuse_examples(example_inputs: object, what: str) -> None:
    if example_inputs is not None:
        raise UsageError(f"example_inputs is for a torch.nn.Module; {what} has its own")


def _refuse_torch_arguments(
    example_inputs: object, dynamic_shapes: object, what: str = "an ONNX"
) -> None:
    for argument, value in (("example_inputs", example_inputs), ("dynamic_shapes", dynamic_shapes)):
        if value is not None:
            raise UsageError(f"{argument} is for PyTorch models; {what} model states its own")

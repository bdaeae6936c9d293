"""PyTorch modules and exported programs, through ``torch.export`` and ``torch.onnx``."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import inspect
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from edgeinfer.bounded import open_file
from edgeinfer.bundle.cache import is_own_file
from edgeinfer.bundle.manifest import SourceRecord
from edgeinfer.bundle.scratch import Scratch
from edgeinfer.convert.sources.onnx import fingerprint
from edgeinfer.convert.sources.quiet import quiet
from edgeinfer.convert.sources.repair import repair
from edgeinfer.convert.sources.torch_checked import check_operands
from edgeinfer.convert.sources.torch_compare import (
    as_exported,
    check_real,
    compare_export,
    is_tensor,
    leaves,
    output_names,
    reason,
)
from edgeinfer.convert.sources.torch_complex import NoFormError, as_pairs, has_complex
from edgeinfer.convert.sources.torch_constants import exact_constants, keep_constants
from edgeinfer.convert.sources.torch_forms import forms
from edgeinfer.convert.sources.torch_numbers import numbers_of_one_type
from edgeinfer.convert.sources.torch_reasons import explained, release
from edgeinfer.convert.sources.torch_sizes import (
    Shapes,
    check_sizes,
    dynamic_axes,
    grow,
    name_sizes,
    note_merged_sizes,
)
from edgeinfer.convert.sources.torch_trust import suspicions
from edgeinfer.errors import SURROUNDINGS, NotAvailableError, Remarks, SourceError, UsageError

if TYPE_CHECKING:
    import torch

Read = tuple[ir.Model, SourceRecord, Remarks]
Forward = Callable[[Mapping[str, Any]], Any]
OLDEST = (2, 11)
"""The oldest PyTorch whose exports are right.

Before 2.9 weights are pickles in a ``.pt2`` file, before 2.11 inputs and outputs lose their names.
"""

_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_TRACES = ("pkg.torch.onnx.stack_trace", "pkg.torch.onnx.fx_node")


def read_module(
    module: torch.nn.Module,
    example_inputs: Mapping[str, Any] | Sequence[Any] | None,
    dynamic_shapes: Shapes | None,
) -> Read:
    """Export a module and check that the export computes what the module does.

    The module is exported in eval mode and left as it was. The weights of the result share memory
    with the module's parameters.

    Raises:
        UsageError: the examples do not fit ``forward``, or a dynamic size names no input or axis.
        SourceError: the module cannot be exported, or its export gives other numbers.
    """
    import torch

    _need_exporter()
    name = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        raise SourceError(f"{name}: a TorchScript module; pass the torch.nn.Module it came from")
    dynamic = dynamic_shapes or {}
    feeds = _by_name(module, example_inputs, name)
    check_sizes(dynamic, feeds)
    notes = Remarks()
    if any(part.training for part in module.modules()):
        notes.add("the module was in training mode; exported in eval mode")

    def forward(inputs: Mapping[str, Any]) -> Any:
        return module(**inputs)

    with _eval_mode(module):
        outputs = _real_outputs(forward, feeds, name)
        _note_short_cut(module, feeds, outputs, notes)
        # A size of 0 or 1 is baked into the export: trace with two where the module lets us.
        traced = grow(feeds, dynamic, only_below=2)
        if _try(forward, traced) is None:
            traced = dict(feeds)

        def finish(model: ir.Model) -> None:
            note_merged_sizes(model, dynamic, notes)
            repair(model, notes, name)
            _verify(model, feeds, outputs, forward, notes, name)

        names = output_names(outputs, feeds)
        model = _exported(module, traced, dynamic, names, name, finish)
    return model, SourceRecord("torch", name, fingerprint(model)), notes


def read_program(
    program: torch.export.ExportedProgram,
    dynamic_shapes: Shapes | None,
    name: str = "ExportedProgram",
    format: str = "torch",
) -> Read:
    """Turn an exported program into a model; ``dynamic_shapes`` only names its dynamic sizes.

    Raises:
        UsageError: a size that is to be named is static, or no input or axis has it.
        SourceError: an operator has no ONNX form, or the result gives other numbers.
    """
    _need_exporter()
    notes = Remarks()
    if program.example_inputs is None:
        model = _exported(program, None, None, None, name, lambda _: None)
        name_sizes(model, dynamic_shapes or {})
        notes.add("the program holds no example inputs; its export was not compared with PyTorch")
        repair(model, notes, name)
        return model, SourceRecord(format, name, fingerprint(model)), notes
    try:
        args, kwargs = program.example_inputs
        names = program.graph_signature.user_inputs
        given = zip(names, leaves((args, kwargs)), strict=False)
        feeds = {str(key): leaf for key, leaf in given if is_tensor(leaf)}
        module = check_operands(program.module())
    except Exception as error:
        # Of a damaged file: PyTorch raises whatever its parts provoke.
        text = f"not a program that can be called ({reason(error)}); export it again"
        raise SourceError(f"{name}: {text}") from error
    # Everything is positional but what the program takes by name.
    by_name = {key: feeds[key] for key in kwargs if key in feeds}

    def forward(inputs: Mapping[str, Any]) -> Any:
        first = [value for key, value in inputs.items() if key not in by_name]
        return module(*first, **{key: inputs[key] for key in by_name})

    outputs = _real_outputs(forward, feeds, name)

    def finish(model: ir.Model) -> None:
        name_sizes(model, dynamic_shapes or {})
        repair(model, notes, name)
        _verify(model, feeds, outputs, forward, notes, name)

    model = _exported(program, None, None, output_names(outputs, feeds), name, finish)
    return model, SourceRecord(format, name, fingerprint(model)), notes


def read_pt2(path: Path, dynamic_shapes: Shapes | None) -> Read:
    """Read a program that ``torch.export.save`` wrote.

    Raises:
        SourceError: the archive is damaged, of another PyTorch version, or holds pickles, objects
            or libraries, which may run any code.
        NotAvailableError: PyTorch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise NotAvailableError(
            f'{path}: reading a .pt2 file needs PyTorch; install it: pip install "edgeinfer[torch]"'
        ) from error
    _need_exporter()
    try:
        with _unchanged(path) as place:
            found = suspicions(place)
            program = None if found else _loaded(place)
            with open_file(place) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
    except Exception as error:
        if isinstance(error, OSError) and error.errno in SURROUNDINGS:
            raise
        # torch.export raises whatever the damaged part provokes.
        raise SourceError(
            f"{path}: not a readable exported program ({reason(error)}); save it again with "
            f"torch.export.save under PyTorch {torch.__version__}"
        ) from error
    if program is None:
        raise SourceError(
            f"{path}: holds what may run any code when it is read: {'; '.join(found)}; save it "
            f"again with torch.export.save under PyTorch {torch.__version__}, or, where you trust "
            "who wrote it, --trust-source, or pass torch.export.load(path)"
        )
    model, record, notes = read_program(program, dynamic_shapes, path.name, "pt2")
    return model, dataclasses.replace(record, sha256=digest), notes


@contextlib.contextmanager
def _unchanged(path: Path) -> Iterator[Path]:
    """Give a file that nobody else can change: PyTorch opens it by name, more than once."""
    if is_own_file(path.absolute()):
        yield path
        return
    with Scratch() as folder, open_file(path) as file:
        copy = folder / "program.pt2"
        with copy.open("xb") as out:
            shutil.copyfileobj(file, out, 1 << 20)
        yield copy


def _loaded(path: Path) -> torch.export.ExportedProgram:
    """Load a program that was looked at; what was overlooked of pickles is refused by PyTorch.

    ``torch.export.load`` opens what has no program once more, with another reader of zips and for
    a form that evaluates texts: that one may see a file that nobody looked at.
    """
    from torch.export.pt2_archive._package import load_pt2

    before = os.environ.get(_FORCE)
    os.environ[_FORCE] = "1"
    try:
        with quiet():
            program = load_pt2(str(path)).exported_programs["model"]
    finally:
        os.environ.pop(_FORCE)
        if before is not None:
            os.environ[_FORCE] = before
    # Conditions on inputs are Python text that calling the program would run.
    program._guards_code = []
    return program


def _need_exporter() -> None:
    import torch

    if release() < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise NotAvailableError(
            f"PyTorch {torch.__version__} is too old: {oldest} or newer writes and exports models "
            'right; pip install --upgrade "edgeinfer[torch]"'
        )
    try:
        with quiet():
            import onnxscript  # noqa: F401
    except ImportError as error:
        raise NotAvailableError(
            "PyTorch models are exported with onnxscript, which is not installed: "
            'pip install "edgeinfer[torch]"'
        ) from error


def _by_name(
    module: torch.nn.Module,
    examples: Mapping[str, Any] | Sequence[Any] | None,
    name: str,
) -> dict[str, Any]:
    """Bind the examples to the parameters of ``forward``, in its order."""
    if examples is None:
        raise UsageError(
            f"{name}: a module needs example_inputs: a tuple of tensors, or a dict by the names of "
            "its forward()"
        )
    signature = inspect.signature(module.forward)
    try:
        if isinstance(examples, Mapping):
            bound = signature.bind(**examples)
        else:
            alone = is_tensor(examples)
            bound = signature.bind(*((examples,) if alone else tuple(examples)))
    except TypeError as error:
        raise UsageError(
            f"{name}: example_inputs do not fit forward{signature}: {error}"
        ) from error
    feeds: dict[str, Any] = {}
    for key, value in bound.arguments.items():
        kind = signature.parameters[key].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            feeds.update(value)
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            raise UsageError(f"{name}: forward(*{key}) has no input names; wrap it in a module")
        elif value is not None:
            feeds[key] = value
    for key, value in feeds.items():
        if not is_tensor(value):
            raise UsageError(
                f"{name}: example input {key!r}: expected a torch.Tensor, received "
                f"{type(value).__name__}; wrap the module so that forward() takes tensors only"
            )
    return _distinct(feeds)


def _distinct(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a tensor that is given twice: the export would read one input for both."""
    seen: set[int] = set()
    found = {}
    for key, value in feeds.items():
        found[key] = value.clone() if id(value) in seen else value
        seen.add(id(value))
    return found


@contextlib.contextmanager
def _eval_mode(module: torch.nn.Module) -> Iterator[None]:
    """Eval mode for every part; afterwards each has its own flag back."""
    flags = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in flags:
            part.training = training


def _call(forward: Forward, feeds: Mapping[str, Any], name: str) -> Any:
    import torch

    try:
        with torch.no_grad(), quiet(), as_exported():
            return forward({key: value.clone() for key, value in feeds.items()})
    except Exception as error:
        # Whatever forward() raises is about the user's own examples.
        raise SourceError(
            f"{name}: forward() fails on the example inputs: {reason(error)}"
        ) from error


def _real_outputs(forward: Forward, feeds: Mapping[str, Any], name: str) -> Any:
    """What ``forward`` makes of the examples, none of which is complex."""
    check_real(feeds, "input", name)
    outputs = _call(forward, feeds, name)
    check_real(leaves(outputs), "output", name)
    return outputs


def _note_short_cut(
    module: torch.nn.Module, feeds: Mapping[str, Any], outputs: Any, notes: Remarks
) -> None:
    """Note where PyTorch's short cut through transformers gives other numbers than their layers."""
    import torch

    if not any(isinstance(part, torch.nn.TransformerEncoder) for part in module.modules()):
        return
    with torch.no_grad(), quiet():
        found = leaves(module(**feeds))
    pairs = zip(filter(is_tensor, leaves(outputs)), filter(is_tensor, found), strict=True)
    if not all(torch.allclose(a, b, rtol=1e-2, atol=1e-2) for a, b in pairs):
        notes.add(
            "torch.nn.TransformerEncoder: padded tokens are computed, where PyTorch's own short "
            "cut (torch.backends.mha) gives zeros"
        )


def _try(forward: Forward, feeds: Mapping[str, Any]) -> Any:
    """Outputs, or None where the module does not take these sizes."""
    try:
        return _call(forward, feeds, "")
    except SourceError:
        return None


def _verify(
    model: ir.Model,
    feeds: Mapping[str, Any],
    outputs: Any,
    forward: Forward,
    notes: Remarks,
    name: str,
) -> None:
    """Compare with PyTorch at the example's sizes and, where sizes are dynamic, at others."""
    cases = [(feeds, outputs)]
    dynamic = dynamic_axes(model)
    where = "on the example inputs"
    if dynamic:
        # A net that halves its sizes several times takes multiples only.
        for how, larger in (
            ("one larger", grow(feeds, dynamic)),
            ("twice as large", grow(feeds, dynamic, twice=True)),
        ):
            if (others := _try(forward, larger)) is not None:
                cases.append((larger, others))
                where = f"on the example inputs and with each dynamic size {how}"
                break
        else:
            notes.add("the dynamic sizes could not be tried: forward() refuses larger ones")
    worst = compare_export(model, cases, name)
    notes.add(f"ONNX export equals PyTorch {where}: max abs diff {worst:.3g}")


def _exported(
    what: Any,
    feeds: Mapping[str, Any] | None,
    dynamic: Shapes | None,
    output_names: list[str] | None,
    name: str,
    finish: Callable[[ir.Model], None],
) -> ir.Model:
    """Export, and ``finish`` the result, which refuses a wrong one; complex numbers again as pairs.

    Raises:
        SourceError: it cannot be exported, or ``finish`` refuses it.
    """
    arguments: dict[str, Any] = {"output_names": output_names}
    if feeds is not None:
        shapes = {key: dict(dynamic.get(key, {})) for key in feeds} if dynamic else None
        arguments |= {
            "kwargs": dict(feeds),
            "dynamic_shapes": shapes,
            "input_names": list(feeds),
        }
    try:
        model = _written(what, arguments)
        _drop_traces(model)
        finish(model)
    except UsageError:
        raise
    except Exception as error:
        # The exporter wraps anything a module can do wrong; the root cause says the most.
        own = error if isinstance(error, SourceError) else None
        try:
            paired = _without_complex(what, feeds, dynamic, output_names)
        except NoFormError as missing:
            which = str(missing).splitlines()[0]
            raise SourceError(
                f"{name}: {which} of complex numbers has no form in ONNX, neither of PyTorch's "
                "exporter nor of ours; compute it with real and imaginary parts"
            ) from error
        if paired is None:
            raise own or SourceError(f"{name}: {explained(error)}") from error
        model = paired
        _drop_traces(model)
        finish(model)
    return model


def _written(what: Any, arguments: Mapping[str, Any]) -> ir.Model:
    import torch

    with quiet(), torch.no_grad(), contextlib.ExitStack() as around:
        for way in (_recurrent_layers_looked_up, _operators_listed_once, numbers_of_one_type):
            around.enter_context(way())
        program = torch.onnx.export(
            what,
            dynamo=True,
            verbose=False,
            optimize=around.enter_context(exact_constants()),
            custom_translation_table=forms(),
            **arguments,
        )
    model: ir.Model = program.model
    keep_constants(model)
    return model


def _without_complex(
    what: Any,
    feeds: Mapping[str, Any] | None,
    dynamic: Shapes | None,
    output_names: list[str] | None,
) -> ir.Model | None:
    """Export with pairs in the place of complex numbers; None where there are none.

    Raises:
        NoFormError: an operator of complex numbers is not known.
    """
    import torch

    program = what
    try:
        with quiet(), torch.no_grad():
            if not isinstance(what, torch.export.ExportedProgram):
                auto = torch.export.Dim.AUTO
                axes = {
                    key: dict.fromkeys((dynamic or {}).get(key, {}), auto) for key in feeds or {}
                }
                program = torch.export.export(
                    what, (), dict(feeds or {}), dynamic_shapes=axes, strict=False
                )
            if not has_complex(program) or program.example_inputs is None:
                return None
    except Exception:
        return None
    given = [leaf for leaf in leaves(program.example_inputs) if is_tensor(leaf)]
    names = list(feeds) if feeds is not None else list(program.graph_signature.user_inputs)
    open_sizes = tuple(_open_sizes(program, feeds, dynamic, names))
    arguments = {
        "args": tuple(given),
        "dynamic_shapes": {"tensors": open_sizes} if any(open_sizes) else None,
        "input_names": names,
        "output_names": output_names,
    }
    try:
        return _written(as_pairs(program), arguments)
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, NoFormError):
                raise cause from error
            cause = cause.__cause__ or cause.__context__
        return None


def _open_sizes(
    program: torch.export.ExportedProgram,
    feeds: Mapping[str, Any] | None,
    dynamic: Shapes | None,
    names: Sequence[str],
) -> Iterator[dict[int, Any]]:
    """Yield the open sizes of each input, by axis."""
    import torch

    if feeds is not None:
        yield from (dict((dynamic or {}).get(name, {})) for name in names)
        return
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    for name in names:
        sizes = enumerate(getattr(values.get(name), "shape", ()))
        yield {axis: torch.export.Dim.AUTO for axis, size in sizes if not isinstance(size, int)}


@contextlib.contextmanager
def _recurrent_layers_looked_up() -> Iterator[None]:
    """Let the exporter's own loops for LSTM and GRU be found, and be gone afterwards.

    It swaps an operator's kernel and leaves what earlier look-ups found (torch 2.13): the second
    export in a process would unroll a layer and fail for a dynamic length.
    """
    import torch

    operators = [torch.ops.aten.lstm.input, torch.ops.aten.gru.input]
    for operator in operators:
        operator._dispatch_cache.clear()
    try:
        yield
    finally:
        for operator in operators:
            operator._dispatch_cache.clear()


@contextlib.contextmanager
def _operators_listed_once() -> Iterator[None]:
    """Have the exporter list C++'s operators once in an export.

    It does so twice for each namespace of operators, of which there are 28 (torch 2.13): a sixth of
    an export's time.
    """
    utils = importlib.import_module("torch._export.utils")
    found = getattr(utils, _LISTING, None)
    if found is None:
        yield
        return
    # Of an export in another thread it may be the one that remembers.
    listing = inspect.unwrap(found)
    setattr(utils, _LISTING, functools.cache(listing))
    try:
        yield
    finally:
        setattr(utils, _LISTING, listing)


_LISTING = "_materialize_cpp_cia_ops"


def _drop_traces(model: ir.Model) -> None:
    """Drop the exporter's stack traces, which hold paths of this machine."""
    for graph in model.graphs():
        for node in graph:
            for key in _TRACES:
                node.metadata_props.pop(key, None)

"""PyTorch modules, exported programs and .pt2 files."""

import collections
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgeinfer.convert.sources import Source, read
from edgeinfer.errors import NotAvailableError, SourceError, UsageError
from edgeinfer.types import Array, Dim

torch = pytest.importorskip("torch")

from edgeinfer.convert.sources import torch_reasons  # noqa: E402


def module(forward: Callable[..., Any]) -> Any:
    """A module without weights from a function whose first parameter is the module itself."""
    made = type(forward.__name__, (torch.nn.Module,), {"forward": forward})
    return made()


class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Dropout, batch norm and an optional input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x: Any, y: Any = None) -> Any:
        out = self.dropout(self.norm(self.linear(x)))
        return {"scores": out if y is None else out + y, "sum": x.sum(1)}


X = torch.linspace(-1, 1, 8).reshape(2, 4)
Y = torch.ones(2, 3)


def run(source: Source, **feeds: Array) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(
        ir.to_proto(source.model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    results: list[Array] = session.run(None, feeds)
    return results


def interface(source: Source) -> list[tuple[str, tuple[Dim, ...]]]:
    found = []
    for value in (*source.model.graph.inputs, *source.model.graph.outputs):
        assert value.shape is not None
        dims = tuple(d if isinstance(d, int) else d.value for d in value.shape)
        found.append((value.name or "", dims))
    return found


def test_module_with_named_dynamic_sizes() -> None:
    net = Net().eval()
    sizes = {"x": {0: "batch"}, "y": {0: "batch"}}
    source = read(net, example_inputs={"y": Y, "x": X}, dynamic_shapes=sizes)
    assert interface(source) == [
        ("x", ("batch", 4)),
        ("y", ("batch", 3)),
        ("scores", ("batch", 3)),
        ("sum", ("batch",)),
    ]
    assert (source.record.format, source.record.name) == ("torch", "Net")
    (note,) = source.notes.lines
    assert note.startswith("ONNX export equals PyTorch on the example inputs and with each dynamic")
    for batch in (1, 5):
        x, y = torch.randn(batch, 4), torch.randn(batch, 3)
        scores, total = run(source, x=x.numpy(), y=y.numpy())
        expected = net(x, y)
        np.testing.assert_allclose(scores, expected["scores"].detach(), atol=1e-6)
        np.testing.assert_allclose(total, expected["sum"], atol=1e-6)


def test_sizes_may_be_torch_dims_and_inputs_a_single_tensor() -> None:
    batch = torch.export.Dim("n", max=64)
    source = read(Net().eval(), example_inputs=X, dynamic_shapes={"x": {0: batch}})
    assert interface(source)[0] == ("x", ("n", 4))


def test_without_dynamic_shapes_every_size_is_static() -> None:
    assert interface(read(Net().eval(), example_inputs=(X,)))[0] == ("x", (2, 4))


def test_one_tensor_for_two_inputs_leaves_them_two_inputs() -> None:
    def forward(self: Any, a: Any, b: Any) -> Any:
        return 2 * a + 3 * b

    one = torch.ones(1, 4)
    source = read(module(forward), example_inputs={"a": one, "b": one})
    a, b = (np.array([v], np.float32) for v in ([1, 2, 3, 4], [5, 6, 7, 8]))
    np.testing.assert_array_equal(run(source, a=a, b=b)[0], 2 * a + 3 * b)


class Recurrent(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.GRU(2, 3, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.layer(x)[0]


of_any_length = pytest.mark.skipif(
    torch_reasons.release() < (2, 13), reason="PyTorch 2.13 traces recurrent layers of any length"
)


@of_any_length
def test_a_recurrent_layer_has_any_length_also_the_second_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    utils = pytest.importorskip("torch._export.utils")
    listed: list[int] = []
    own = utils._materialize_cpp_cia_ops

    def listing() -> None:
        listed.append(1)
        own()

    monkeypatch.setattr(utils, "_materialize_cpp_cia_ops", listing)
    for turn in range(2):
        model = read(
            Recurrent(),
            example_inputs={"x": torch.randn(1, 4, 2)},
            dynamic_shapes={"x": {1: "frames"}},
        ).model
        assert [str(s) for s in model.graph.inputs[0].shape or ()] == ["1", "frames", "2"]
        # What C++ knows is listed once in an export, and anew in the next.
        assert len(listed) == turn + 1
        assert utils._materialize_cpp_cia_ops is listing


@pytest.mark.sample(2)
@pytest.mark.parametrize("by", ["topk", "smallest", "sort", "argsort"])
def test_among_equal_values_the_first_is_taken(by: str) -> None:
    """PyTorch leaves the choice to its kernel, and ONNX does not: either is right."""

    def forward(self: Any, x: Any) -> Any:
        scores = (x.sum(-1) > 1e9).float()
        chosen = {
            "topk": lambda: torch.topk(scores, 20, dim=1).indices,
            "smallest": lambda: torch.topk(scores, 20, dim=1, largest=False).indices,
            "sort": lambda: torch.sort(scores, dim=1).indices[:, :20],
            "argsort": lambda: torch.argsort(scores, dim=1, descending=True)[:, :20],
        }[by]()
        return x.gather(1, chosen[..., None].expand(-1, -1, 3))

    x = torch.arange(3 * 84.0).reshape(1, 84, 3)
    source = read(module(forward), example_inputs={"x": x})
    np.testing.assert_array_equal(run(source, x=x.numpy())[0], x[:, :20].numpy())


def test_training_flags_are_left_as_they_were() -> None:
    net = Net()
    net.norm.eval()
    mean = net.norm.running_mean.clone()
    source = read(net, example_inputs=(X,))
    assert source.notes.lines[0] == "the module was in training mode; exported in eval mode"
    assert [part.training for part in net.modules()] == [True, True, False, True]
    assert torch.equal(net.norm.running_mean, mean)
    expected = net.eval()(X)["scores"].detach()
    np.testing.assert_allclose(run(source, x=X.numpy())[0], expected, atol=1e-6)


def test_flags_come_back_after_a_failure() -> None:
    def forward(self: Any, x: Any) -> Any:
        raise ValueError("not today")

    net = module(forward)
    with pytest.raises(SourceError, match=r"forward: forward\(\) fails .*: not today"):
        read(net, example_inputs=(X,))
    assert net.training


def test_sizes_that_the_module_ties_are_noted() -> None:
    source = read(
        Net().eval(), example_inputs=(X, Y), dynamic_shapes={"x": {0: "n"}, "y": {0: "m"}}
    )
    assert interface(source)[:2] == [("x", ("n", 4)), ("y", ("n", 3))]
    assert "size 'm' of input 'y': always equal to 'n'" in source.notes.lines


def test_a_batch_of_one_is_not_baked_in() -> None:
    """torch.export specialises sizes of one: this net's export would only run with one."""

    def forward(self: Any, x: Any) -> Any:
        return x.flatten(0, 1) @ torch.ones(4, 4)

    x = torch.randn(1, 3, 4)
    source = read(module(forward), example_inputs=(x,), dynamic_shapes={"x": {0: "batch"}})
    assert interface(source)[0] == ("x", ("batch", 3, 4))
    (y,) = run(source, x=np.ones((5, 3, 4), np.float32))
    np.testing.assert_array_equal(y, np.full((15, 4), 4))


@of_any_length
@pytest.mark.slow
def test_declared_shape_that_the_exporter_gets_wrong_is_replaced() -> None:
    torch.manual_seed(0)
    net = torch.nn.LSTM(4, 3, batch_first=True)
    sizes = {"input": {0: "batch", 1: "frames"}}
    source = read(net, example_inputs=(torch.randn(2, 20, 4),), dynamic_shapes=sizes)
    for name, dims in interface(source):
        assert 20 not in dims, name
    frames = run(source, input=np.ones((3, 7, 4), np.float32))[0]
    expected = net(torch.ones(3, 7, 4))[0].detach()
    np.testing.assert_allclose(frames, expected, atol=1e-6)


Pair = collections.namedtuple("Pair", ["u", "v"])

OUTPUTS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "nested": (lambda self, x: [x + 1, (x + 2, None)], ["output_0", "output_1"]),
    "dict": (lambda self, x: {"b": x + 1, "a": x + 2}, ["b", "a"]),
    "namedtuple": (lambda self, x: Pair(x + 1, x + 2), ["u", "v"]),
    "twice the same": (lambda self, x: (lambda y: (y, y))(x + 1), ["output_0", "output_1"]),
    "the input": (lambda self, x: x, ["output"]),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", OUTPUTS)
def test_outputs_are_named_as_forward_does(case: str) -> None:
    forward, names = OUTPUTS[case]
    source = read(module(forward), example_inputs=(X,))
    assert [value.name for value in source.model.graph.inputs] == ["x"]
    assert [value.name for value in source.model.graph.outputs] == names
    assert len(run(source, x=X.numpy())) == len(names)


def test_shared_weights_are_stored_once() -> None:
    net = torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.Linear(4, 7, bias=False))
    net[1].weight = net[0].weight
    source = read(net, example_inputs=(torch.tensor([[1, 2]]),))
    weights = [v for v in source.model.graph.initializers.values() if v.shape == ir.Shape([7, 4])]
    assert len(weights) == 1


def test_no_path_of_this_machine_is_left_in_the_model() -> None:
    source = read(Net().eval(), example_inputs=(X,))
    text = ir.to_proto(source.model).SerializeToString()
    assert b"site-packages" not in text
    assert Path(__file__).name.encode() not in text


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    def forward(self: Any, x: Any) -> Any:
        sys.stdout.write("chatter")
        return x + 1

    read(module(forward), example_inputs=(X,), dynamic_shapes={"x": {0: "n"}})
    assert capfd.readouterr() == ("", "")


@pytest.fixture(scope="module")
def program() -> Any:
    batch = torch.export.Dim("batch")
    sizes = {"x": {0: batch}, "y": {0: batch}}
    return torch.export.export(Net().eval(), (X,), {"y": Y}, dynamic_shapes=sizes)


@pytest.fixture(scope="module")
def pt2(program: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pt2") / "net.pt2"
    torch.export.save(program, path)
    return path


def test_exported_program_and_pt2_file(program: Any, pt2: Path) -> None:
    sizes = {"y": {0: "batch"}}
    for given, kind, name in (
        (program, "torch", "ExportedProgram"),
        (str(pt2), "pt2", "net.pt2"),
    ):
        source = read(given, dynamic_shapes=sizes)
        if kind == "pt2":
            assert source.record.sha256 == hashlib.sha256(pt2.read_bytes()).hexdigest()
        assert (source.record.format, source.record.name) == (kind, name)
        assert interface(source) == [
            ("x", ("batch", 4)),
            ("y", ("batch", 3)),
            ("scores", ("batch", 3)),
            ("sum", ("batch",)),
        ]
        scores = run(source, x=np.ones((5, 4), np.float32), y=np.ones((5, 3), np.float32))[0]
        expected = Net().eval()(torch.ones(5, 4), torch.ones(5, 3))["scores"].detach()
        np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_program_without_example_inputs_is_noted(pt2: Path) -> None:
    program = torch.export.load(pt2)
    program.example_inputs = None
    source = read(program)
    assert "was not compared with PyTorch" in source.notes.lines[0]
    assert len(source.model.graph.inputs) == 2


def test_damaged_pt2_is_refused(pt2: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    with zipfile.ZipFile(pt2) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, b"{}" if name.endswith("models/model.json") else content)
    with pytest.raises(SourceError, match="not a readable exported program") as caught:
        read(path)
    assert "\n" not in str(caught.value)


def random_forward(self: Any, x: Any) -> Any:
    return x + torch.rand_like(x)


def data_dependent(self: Any, x: Any) -> Any:
    return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (random_forward, "gives other numbers than PyTorch for output 'output'"),
        (data_dependent, "torch.export cannot trace it: Could not guard on data-dependent"),
    ],
)
def test_refused_with_the_reason_in_one_line(forward: Callable[..., Any], words: str) -> None:
    with pytest.raises(SourceError, match=words) as caught:
        read(module(forward), example_inputs=(X,))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(forward.__name__)


def test_size_that_cannot_be_dynamic_is_refused() -> None:
    with pytest.raises(SourceError, match="inferred a static shape of 4"):
        read(Net().eval(), example_inputs=(X,), dynamic_shapes={"x": {1: "features"}})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_module_is_refused() -> None:
    script = torch.jit.trace(Net().eval().linear, X)
    with pytest.raises(SourceError, match="a TorchScript module"):
        read(script, example_inputs=(X,))


USAGE: dict[str, tuple[dict[str, Any], str]] = {
    "no examples": ({}, "needs example_inputs"),
    "too few": ({"example_inputs": ()}, "do not fit forward"),
    "unknown name": ({"example_inputs": {"z": X}}, "do not fit forward"),
    "not a tensor": ({"example_inputs": (X, 3)}, "expected a torch.Tensor, received int"),
    "unknown size": (
        {"example_inputs": (X,), "dynamic_shapes": {"z": {0: "n"}}},
        "no input 'z'; inputs are x",
    ),
    "axis too large": (
        {"example_inputs": (X,), "dynamic_shapes": {"x": {2: "n"}}},
        "input 'x' has 2 axes, received axis 2",
    ),
    "no axes": (
        {"example_inputs": (X,), "dynamic_shapes": {"x": ["n"]}},
        "expected {axis: name}",
    ),
}


@pytest.mark.parametrize("case", USAGE)
def test_arguments_that_do_not_fit(case: str) -> None:
    arguments, words = USAGE[case]
    with pytest.raises(UsageError, match=words):
        read(Net(), **arguments)


def test_arguments_of_an_exported_program(program: Any) -> None:
    with pytest.raises(UsageError, match="example_inputs is for a torch"):
        read(program, example_inputs=(X,))
    with pytest.raises(UsageError, match="axis 1 of input 'x' is 4"):
        read(program, dynamic_shapes={"x": {1: "n"}})
    with pytest.raises(UsageError, match="no input 'z'"):
        read(program, dynamic_shapes={"z": {0: "n"}})


def test_missing_packages_are_named(
    program: Any, pt2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install = 'pip install "edgeinfer\\[torch\\]"'
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    for given in (pt2, program):
        with pytest.raises(NotAvailableError, match=install):
            read(given)
    with pytest.raises(NotAvailableError, match=install):
        read(Net(), example_inputs=(X,))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(NotAvailableError, match=install):
        read(pt2)


def test_reading_onnx_does_not_import_torch() -> None:
    code = "import sys, edgeinfer.convert.sources; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

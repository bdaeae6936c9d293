"""Operators that an exported program may name, and those that would be run for whoever wrote it."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from edgeinfer.convert.sources.torch_operators import is_let_through, strangers  # noqa: E402
from edgeinfer.convert.sources.torch_trust import suspicions  # noqa: E402

ATEN = "torch.ops.aten."
X = {"as_tensor": {"name": "x"}}


POSITIONAL, KEYWORD = 1, 2


def call(target: str, kind: int = KEYWORD, **arguments: Any) -> dict[str, Any]:
    inputs = [{"name": name, "arg": value, "kind": kind} for name, value in arguments.items()]
    return {"target": target, "inputs": inputs, "outputs": [], "metadata": {}}


def texts(*values: str) -> dict[str, Any]:
    return {f"text{i}": {"as_string": value} for i, value in enumerate(values)}


def numbers(**values: Any) -> dict[str, Any]:
    kinds = {int: "as_int", float: "as_float", list: "as_ints"}
    return {name: {kinds[type(value)]: value} for name, value in values.items()}


@pytest.mark.parametrize(
    "target",
    [
        # Trusts sizes and strides, or the lengths of sequences.
        ATEN + "_reshape_alias.default",
        ATEN + "lstm.data",
        ATEN + "to.prim_dtype",
        # Trusts an index, and writes there.
        ATEN + "max_pool2d_with_indices_backward.default",
        ATEN + "adaptive_max_pool2d_backward.default",
        ATEN + "segment_reduce.default",
        ATEN + "_ctc_loss.default",
        ATEN + "_unsafe_index_put.default",
        # Writes as many statistics as there are channels.
        ATEN + "native_batch_norm.default",
        ATEN + "_native_batch_norm_legit.default",
        ATEN + "_print.default",
        ATEN + "save.default",
        ATEN + "from_file.default",
        ATEN + "add.out",
        ATEN + "resize_.default",
        ATEN + "set_.default",
        ATEN + "as_strided_.default",
        # Of lists and numbers, for TorchScript.
        ATEN + "add.t",
        ATEN + "mul.left_t",
        ATEN + "add.str",
        ATEN + "pow.int",
        ATEN + "relu.nothing",
        "torch.ops.prims.convert_element_type.default",
        "torch.ops.profiler._record_function_enter.default",
        "torch.ops.debugprims.load_tensor.default",
        "torch.ops.torchvision.nms.default",
        "torch.ops.higher_order.print",
        "torch.ops.higher_order.auto_functionalized",
        "math.factorial",
        "_operator.getitem",
        "_operator.concat",
        "torch.nn.functional.relu",
        "#module:anything",
    ],
)
def test_what_no_model_needs_is_code(target: str) -> None:
    (found,) = strangers(call(target, self=X))
    assert found.startswith(f"the function {target!r}")
    assert not is_let_through(target)


@pytest.mark.parametrize(
    "node",
    [
        call("_operator.pow", a=numbers(v=3)["v"], b=numbers(v=10**9)["v"]),
        call("_operator.pow", a=numbers(v=3)["v"], b={"as_sym_int": {"as_name": "n"}}),
        call("_operator.lshift", a=numbers(v=1)["v"], b=numbers(v=10**12)["v"]),
        call("_operator.mul", a={"as_string": "x"}, b=numbers(v=10**9)["v"]),
        call("_operator.add", a=X, b=X),
        call(ATEN + "gelu.default", self=X, **texts("\x1b[31m")),
        call(ATEN + "einsum.default", **texts("ij,jk->ik\x07")),
        call(ATEN + "_assert_scalar.default", **texts("\x1b]0;title\x07")),
        call(ATEN + "meshgrid.indexing", tensors={"as_strings": ["zz"]}),
    ],
)
def test_safe_functions_of_unsafe_values_are_code(node: dict[str, Any]) -> None:
    (found,) = strangers(node)
    assert found.startswith(f"the function {node['target']!r}")


@pytest.mark.parametrize(
    "node",
    [
        call(ATEN + "full.default", **numbers(size=[10**5, 10**4], fill_value=1.0)),
        call(ATEN + "arange.default", **numbers(end=10**9)),
        call(ATEN + "arange.start_step", **numbers(start=0, end=10**9, step=2)),
        call(ATEN + "eye.default", **numbers(n=10**5)),
        call(ATEN + "repeat.default", self=X, **numbers(repeats=[10**5, 10**5])),
        call(ATEN + "linspace.default", **numbers(start=0.0, end=1.0, steps=10**9)),
        call(ATEN + "empty.memory_format", size={"as_sym_ints": [{"as_int": 10**9}]}),
        call(ATEN + "constant_pad_nd.default", self=X, **numbers(pad=[1 << 62, 1 << 62])),
        call(ATEN + "upsample_nearest2d.default", input=X, **numbers(scales_h=1e-30)),
    ],
)
def test_numbers_that_no_model_needs_are_refused(node: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"no model needs|makes a tensor of"):
        list(strangers(node))


class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
    """What exports of models hold: layers, attention, indices, sizes, texts, changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding="same")
        self.norm = torch.nn.BatchNorm2d(8)
        self.act = torch.nn.GELU(approximate="tanh")
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.recurrent = torch.nn.LSTM(8, 4, batch_first=True)
        self.embed = torch.nn.Embedding(5, 8)

    def forward(self, x: Any) -> Any:
        x = torch.relu_(self.norm(self.conv(x)))
        x = torch.nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear")
        x = torch.nn.functional.pad(self.act(x), (1, 1, 1, 1), mode="reflect")
        s = x.mean(3).transpose(1, 2)
        s = s + self.embed(torch.arange(s.shape[1]) % 5)
        mask = torch.full((s.shape[1], s.shape[1]), float("-inf")).triu(1)
        with torch.no_grad():
            s = self.layer(s, src_mask=mask)
        s, _ = self.recurrent(s)
        top = s.softmax(-1).topk(2).values
        s[:, 0] = 0.0
        return torch.einsum("bik,bjk->bij", top, top).div(3, rounding_mode="floor"), s


@pytest.mark.sample(1)
@pytest.mark.parametrize("core", [False, True])
def test_exports_of_models_are_let_through(core: bool, tmp_path: Path) -> None:
    sizes = {"x": {0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO}}
    program = torch.export.export(Net().eval(), (torch.ones(2, 3, 8, 8),), dynamic_shapes=sizes)
    torch.export.save(program.run_decompositions() if core else program, tmp_path / "net.pt2")
    with zipfile.ZipFile(tmp_path / "net.pt2") as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("models/model.json"))
        nodes = json.loads(archive.read(name))["graph_module"]["graph"]["nodes"]
    assert len(nodes) > 20
    assert [text for node in nodes for text in strangers(node)] == []
    assert suspicions(tmp_path / "net.pt2") == []


@pytest.mark.parametrize("name", ["dtype", "layout", "memory_format", "device"])
def test_a_number_is_no_type(name: str) -> None:
    """PyTorch looked behind the end of a table for it."""
    found = list(strangers(call(ATEN + "_to_copy.default", self=X, **numbers(**{name: 1 << 30}))))
    assert found == [f"the function 'torch.ops.aten._to_copy.default' with a {name!r} that is none"]


def test_arguments_are_where_their_names_say() -> None:
    target = ATEN + "full.default"
    size, value = {"as_ints": [2]}, {"as_float": 1.0}
    assert not list(strangers(call(target, POSITIONAL, size=size, fill_value=value)))
    for odd in (
        call(target, POSITIONAL, fill_value=value, size=size),
        call(target, POSITIONAL, other=size, fill_value=value),
        call(target, POSITIONAL, size=size, dtype={"as_none": True}),
    ):
        assert "with its arguments in another order" in next(strangers(odd))
    twice = call(target, size={"as_ints": [2]}, fill_value=value)
    twice["inputs"].append({"name": "size", "arg": size, "kind": 2})
    assert "with its arguments in another order" in next(strangers(twice))

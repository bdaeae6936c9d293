"""Exported programs that would run Python of their own: none of it may run."""

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from edgeinfer.cli.failures import guarded  # noqa: E402
from edgeinfer.cli.group import edgeinfer as group  # noqa: E402
from edgeinfer.convert.sources import read, torch_trust  # noqa: E402
from edgeinfer.errors import SourceError  # noqa: E402

MODEL, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"
SAMPLES = "data/sample_inputs/model.pt"

Change = Callable[[bytes], bytes]


class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.linear(x) * torch.tensor(2.0)


class Touch:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pt2") / "net.pt2"
    size = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(
        Net().eval(), (torch.ones(3, 4),), dynamic_shapes={"x": {0: size}}
    )
    torch.export.save(program, path)
    return path


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "mark"


@pytest.fixture
def changed(plain: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write the program anew with some members changed, and some more."""

    def write(changes: dict[str, Change], more: dict[str, bytes] | None = None) -> Path:
        path = tmp_path / "changed.pt2"
        with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w") as target:
            root = source.namelist()[0].split("/")[0]
            for name in source.namelist():
                content = source.read(name)
                change = changes.get(name.removeprefix(f"{root}/"))
                target.writestr(name, change(content) if change else content)
            for name, content in (more or {}).items():
                target.writestr(f"{root}/{name}", content)
        return path

    return write


def _json(edit: Callable[[Any], object]) -> Change:
    def change(raw: bytes) -> bytes:
        data = json.loads(raw)
        edit(data)
        return json.dumps(data).encode()

    return change


def _replaced(old: str, new: str) -> Change:
    def change(raw: bytes) -> bytes:
        assert old.encode() in raw
        return raw.replace(old.encode(), new.encode())

    return change


def _refused(path: Path, mark: Path, words: str) -> None:
    with pytest.raises(SourceError, match="may run any code when it is read: .*" + words):
        read(path)
    assert not mark.exists()


def test_a_plain_one_is_read(plain: Path) -> None:
    assert torch_trust.suspicions(plain) == []
    assert len(read(plain).model.graph.inputs) == 1


@pytest.mark.parametrize(("config", "folder"), [(WEIGHTS, "weights"), (CONSTANTS, "constants")])
def test_pickled_tensors_are_refused(
    changed: Callable[..., Path], mark: Path, config: str, folder: str
) -> None:
    def mark_first(data: Any) -> None:
        next(iter(data["config"].values()))["use_pickle"] = True

    evil = pickle.dumps(Touch(mark))
    name = "weight_0" if folder == "weights" else "tensor_0"
    path = changed({config: _json(mark_first), f"data/{folder}/{name}": lambda _: evil})
    _refused(path, mark, "as a pickle or an object")


def test_every_command_that_reads_models_refuses(
    changed: Callable[..., Path], mark: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(changed({SAMPLES: lambda _: pickle.dumps(Touch(mark))}))
    for command in (
        ["inspect", path],
        ["check", path, "-t", "cpu"],
        ["convert", path, "-t", "cpu"],
    ):
        assert guarded(group, command) == 1
        assert "may run any code when it is read" in capsys.readouterr().err
    assert not mark.exists()


@pytest.mark.parametrize("prefix", ["custom_obj_0", "opaque_obj_0"])
def test_objects_are_refused(changed: Callable[..., Path], mark: Path, prefix: str) -> None:
    def point(data: Any) -> None:
        next(iter(data["config"].values()))["path_name"] = prefix

    more = {f"data/constants/{prefix}": pickle.dumps(Touch(mark))}
    _refused(changed({CONSTANTS: _json(point)}, more), mark, "as a pickle or an object")


@pytest.mark.parametrize("folder", ["weights", "constants"])
def test_weights_of_an_older_form_are_refused(
    changed: Callable[..., Path], mark: Path, folder: str
) -> None:
    more = {f"data/{folder}/model.pt": pickle.dumps(Touch(mark))}
    _refused(changed({}, more), mark, "a pickle of weights")


def test_a_file_of_an_older_form_is_refused(tmp_path: Path, mark: Path) -> None:
    path = tmp_path / "old.pt2"
    evil = pickle.dumps(Touch(mark))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("version", "8.8")
        archive.writestr("serialized_exported_program.json", b"{}")
        for name in ("state_dict", "constants", "example_inputs"):
            archive.writestr(f"serialized_{name}.pt", evil)
    with pytest.raises(SourceError):
        read(path)
    assert not mark.exists()


def test_example_inputs_with_objects_are_refused(changed: Callable[..., Path], mark: Path) -> None:
    path = changed({SAMPLES: lambda _: pickle.dumps(Touch(mark))})
    _refused(path, mark, "example inputs that are not tensors alone")


def test_compiled_libraries_are_refused(changed: Callable[..., Path], mark: Path) -> None:
    _refused(changed({}, {"data/aotinductor/model/x.so": b"\x7fELF"}), mark, "a compiled library")


@pytest.mark.parametrize(
    "target",
    [
        "torch.serialization.os.system",
        "torch.ops.load_library",
        "torch.hub.load",
        "torch.ops.aten.from_file.default",
        "_operator.methodcaller",
        "_operator.__loader__.load_module",
        "math.__loader__.load_module",
        "#module:anything",
    ],
)
def test_functions_that_are_no_operators_are_refused(
    changed: Callable[..., Path], mark: Path, target: str
) -> None:
    path = changed({MODEL: _replaced("torch.ops.aten.linear.default", target)})
    _refused(path, mark, "the function")


@pytest.mark.parametrize(
    "text",
    [
        "__import__('pathlib').Path('{mark}').touch()",
        "Symbol('s17').__class__",
        "Add('open(\\\\'{mark}\\\\', \\\\'w\\\\')', 1)",
        "[open('{mark}', 'w')]",
        "eval('1')",
        "Symbol('s17 + open()')",
    ],
)
def test_sizes_that_are_code_are_refused(
    changed: Callable[..., Path], mark: Path, text: str
) -> None:
    def edit(data: Any) -> None:
        for value in data["graph_module"]["graph"]["tensor_values"].values():
            for size in value["sizes"]:
                if "as_expr" in size:
                    size["as_expr"]["expr_str"] = text.format(mark=mark)

    _refused(changed({MODEL: _json(edit)}), mark, "the expression")


def test_conditions_on_inputs_are_not_run(changed: Callable[..., Path], mark: Path) -> None:
    def edit(data: Any) -> None:
        data["guards_code"] = [f"__import__('pathlib').Path({str(mark)!r}).touch()"]

    assert read(changed({MODEL: _json(edit)})).model is not None
    assert not mark.exists()


def test_a_container_that_imports_is_refused(changed: Callable[..., Path], mark: Path) -> None:
    def edit(data: Any) -> None:
        graph = data["graph_module"]["module_call_graph"][0]["signature"]
        graph["in_spec"] = graph["in_spec"].replace(
            '"builtins.tuple", "context": "null"',
            '"collections.defaultdict", "context": "{\\"default_factory_module\\": \\"os\\"}"',
            1,
        )
        assert "default_factory" in graph["in_spec"]

    _refused(changed({MODEL: _json(edit)}), mark, "a container that imports a module")


def test_sizes_that_pytorch_writes_are_no_code() -> None:
    for text in (
        "Symbol('s17', positive=True, integer=True)",
        "Add(Mul(Integer(2), Symbol('s0', positive=True, integer=True)), Integer(-1))",
        "FloorDiv(Symbol('s0', integer=True), Integer(2))",
        "Equality(Mod(Symbol('s0', integer=True), Integer(2)), Integer(0))",
        "Float('0.5', precision=53)",
    ):
        assert torch_trust._is_size(text), text


def test_who_trusts_the_source_gets_it(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(group, ["inspect", str(plain), "--trust-source"]) == 0
    onnx = tmp_path / "x.onnx"
    onnx.write_bytes(b"")
    assert guarded(group, ["inspect", str(onnx), "--trust-source"]) == 2
    assert "--trust-source is for .pt2 files" in capsys.readouterr().err


def test_example_inputs_that_are_none_are_a_finding(plain: Path) -> None:
    program = torch.export.load(plain)
    program._example_inputs = ((torch.ones(3, 4),), [])
    with pytest.raises(SourceError, match="not a program that can be called"):
        read(program)

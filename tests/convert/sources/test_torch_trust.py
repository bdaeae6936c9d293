"""Exported programs that would run Python of their own: none of it may run."""

import hashlib
import io
import json
import pickle
import re
import struct
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch._export.serde.schema import SCHEMA_VERSION  # noqa: E402

import edgeinfer  # noqa: E402
from edgeinfer.cli.failures import guarded  # noqa: E402
from edgeinfer.cli.group import edgeinfer as group  # noqa: E402
from edgeinfer.convert.sources import read, torch_trust  # noqa: E402
from edgeinfer.convert.sources import torch as convert_torch  # noqa: E402
from edgeinfer.convert.sources.torch_expressions import is_size  # noqa: E402
from edgeinfer.errors import CrashedError, NotAvailableError, SourceError  # noqa: E402

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


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
def test_what_is_loaded_is_what_was_looked_at(
    plain: Path, mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever might write its folder put another file there in between, and its Python ran."""
    looked, looks = torch_trust.suspicions, list[Path]()

    def swapped(path: Path) -> list[str]:
        found = looked(path)
        looks.append(path)
        with zipfile.ZipFile(plain) as old, zipfile.ZipFile(tmp_path / "evil", "w") as new:
            for name in old.namelist():
                raw = old.read(name)
                if name.endswith(CONSTANTS):
                    config = json.loads(raw)
                    config["config"]["evil"] = {
                        **{"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True},
                        "tensor_meta": None,
                    }
                    raw = json.dumps(config).encode()
                    place = name.rpartition("/")[0] + "/opaque_obj_0"
                    new.writestr(place, pickle.dumps(Touch(mark)))
                new.writestr(name, raw)
        (tmp_path / "evil").replace(there)
        return found

    monkeypatch.setattr(convert_torch, "suspicions", swapped)
    folder = tmp_path / "anybody's"
    folder.mkdir()
    there = folder / "net.pt2"
    there.write_bytes(plain.read_bytes())
    folder.chmod(0o777)
    model, record, _ = convert_torch.read_pt2(there, None)
    assert not mark.exists()
    assert looks != [there]
    assert record.sha256 == hashlib.sha256(plain.read_bytes()).hexdigest()
    assert [value.name for value in model.graph.inputs] == ["x"]


def test_a_plain_one_is_read(plain: Path) -> None:
    assert torch_trust.suspicions(plain) == []
    assert len(read(plain).model.graph.inputs) == 1


def _listed(files: dict[str, bytes], start: int, size: int) -> tuple[bytes, bytes]:
    """Return members of a zip that begin there, and their list, which is made so large."""
    out = io.BytesIO()
    out.write(bytes(start))
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    raw, at = out.getvalue(), archive.start_dir
    listed = bytearray(raw[at : raw.index(b"PK\5\6", at)])
    spare = size - len(listed)
    # Of the last one, the length of its comment.
    struct.pack_into("<H", listed, listed.rindex(b"PK\1\2") + 32, spare)
    return raw[start:at], bytes(listed) + bytes(spare)


def test_two_lists_of_members_make_no_second_program(plain: Path, tmp_path: Path) -> None:
    """PyTorch reads the list that the end names, Python's zipfile the one before the end.

    A program of the form before 2.8 lay in the other one; its sizes are Python text.
    """
    mark = tmp_path / "mark"
    with zipfile.ZipFile(plain) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    root = next(iter(files)).split("/")[0]
    seen = {n: c for n, c in files.items() if "/models/" not in n and "/data/" not in n}
    text = f"__import__('os').mkdir({str(mark)!r})"
    program = re.sub(
        rb'"expr_str": "[^"]*"',
        lambda _: f'"expr_str": {json.dumps(text)}'.encode(),
        json.dumps(json.loads(files[f"{root}/{MODEL}"])).encode(),
    )
    pickles = {}
    for name, value in (
        *(("state_dict", {}), ("constants", {})),
        ("example_inputs", ((torch.ones(3, 4),), {})),
    ):
        torch.save(value, out := io.BytesIO())
        pickles[f"serialized_{name}.pt"] = out.getvalue()
    version = ".".join(map(str, SCHEMA_VERSION)).encode()
    other = {"version": version, "serialized_exported_program.json": program, **pickles}
    seen |= {f"{root}/extra_filler": bytes(1 << 14)}
    size = 4000
    first, list_of_first = _listed(seen, 0, size)
    # zipfile adds the size of the list that it does not see to each place.
    second, list_of_second = _listed(other, len(first) - size, size)
    raw = first + second + list_of_first + list_of_second
    count, at = len(seen), len(first + second)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, size, at, 0)
    path = tmp_path / "two.pt2"
    path.write_bytes(raw + end)
    assert torch._C.PyTorchFileReader(str(path)).has_record("archive_format")
    with zipfile.ZipFile(path) as archive:
        assert archive.read("version") == version
    with pytest.raises(SourceError, match="no program of this form"):
        read(path)
    assert not mark.exists()
    # Whoever overlooks it gets an error, and no other reader.
    with pytest.raises(KeyError):
        convert_torch._loaded(path)
    assert not mark.exists()


@pytest.mark.parametrize("name", [CONSTANTS, WEIGHTS, MODEL, SAMPLES])
def test_names_in_other_cases_are_looked_at(
    plain: Path, changed: Callable[..., Path], mark: Path, name: str
) -> None:
    """PyTorch reads what is called so, too."""
    root, _, rest = name.partition("/")
    for other in (f"{root.upper()}/{rest}", f"{root}/{rest.upper()}"):
        _refused(changed({}, {other: b'{"config":{}}'}), mark, f"a member by two names .{other}")


def test_a_reader_that_tells_no_sizes_is_asked_for_the_bytes(
    plain: Path, changed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch 2.11 has none that tells them."""

    class Older:
        def __init__(self, path: Any) -> None:
            self.inner = inner(path)

        def __getattr__(self, name: str) -> Any:
            if name == "get_record_size":
                raise AttributeError(name)
            return getattr(self.inner, name)

    inner = torch._C.PyTorchFileReader
    monkeypatch.setattr(torch._C, "PyTorchFileReader", Older)
    assert torch_trust.suspicions(plain) == []

    def edit(data: Any) -> None:
        meta = next(iter(data["config"].values()))["tensor_meta"]
        meta["sizes"], meta["strides"] = [{"as_int": 1 << 30}], [{"as_int": 0}]

    with pytest.raises(ValueError, match="4294967296 bytes, of which the file holds 48"):
        torch_trust.suspicions(changed({WEIGHTS: _json(edit)}))


def test_an_older_pytorch_is_refused_in_words(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would write pickles again, and names of its exports are others."""
    monkeypatch.setattr(torch, "__version__", "2.10.1+cu128")
    given: dict[str, Any] = {"example_inputs": (torch.ones(3, 4),)}
    for source, more in ((plain, {}), (Net(), given)):
        with pytest.raises(
            NotAvailableError, match=r"PyTorch 2\.10\.1\+cu128 is too old: 2\.11 or"
        ):
            read(source, **more)


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


def _spec(kind: str, context: Any) -> str:
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    inner = {"type": kind, "context": context, "children_spec": [leaf]}
    empty = {"type": "builtins.dict", "context": "[]", "children_spec": []}
    return json.dumps(
        [1, {"type": "builtins.tuple", "context": "null", "children_spec": [inner, empty]}]
    )


ENUM = {"__enum__": True, "fqn": "marks:X", "name": "A"}
FACTORY = {"default_factory_module": "marks", "default_factory_name": "X", "dict_context": []}


@pytest.mark.parametrize("key", ["in_spec", "out_spec"])
@pytest.mark.parametrize(
    "spec",
    [
        _spec("builtins.tuple", json.dumps(ENUM)),
        _spec("builtins.list", json.dumps([ENUM])),
        _spec("builtins.dict", json.dumps([ENUM])),
        _spec("builtins.dict", json.dumps([["x", ENUM]])),
        _spec("builtins.dict", json.dumps([ENUM])).replace("__enum__", r"__\\u0065num__"),
        _spec("collections.OrderedDict", json.dumps([ENUM])),
        _spec("collections.deque", json.dumps(ENUM)),
        _spec("collections.defaultdict", FACTORY),
        _spec("collections.defaultdict", FACTORY).replace("default", r"def\u0061ult"),
        _spec("some.unknown.Kind", "null"),
        _spec("builtins.tuple", ENUM),
        "[2, null]",
        "no JSON",
        "[" * 100_000,
    ],
)
def test_containers_that_are_not_plain_are_refused(
    changed: Callable[..., Path],
    tmp_path: Path,
    mark: Path,
    key: str,
    spec: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "marks.py").write_text(f"open({str(mark)!r}, 'w')\nclass X: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "marks", raising=False)

    def edit(data: Any) -> None:
        data["graph_module"]["module_call_graph"][0]["signature"][key] = spec

    _refused(changed({MODEL: _json(edit)}), mark, r"the container .*models/model\.json.*--trust-s")


class Nested(torch.nn.Module):  # type: ignore[misc,name-defined]
    def forward(self, x: Any) -> Any:
        ordered = OrderedDict({"a": (x["b"] + 1, [x["c"]])})
        return {"o": ordered, 3: x["b"] * 2}


def test_plain_containers_are_read(tmp_path: Path) -> None:
    path = tmp_path / "nested.pt2"
    example = {"b": torch.ones(2), "c": torch.ones(2)}
    torch.export.save(torch.export.export(Nested(), (example,)), path)
    assert torch_trust.suspicions(path) == []


@pytest.mark.parametrize("folder", ["weights", "constants"])
def test_weights_larger_than_the_file_are_refused(
    changed: Callable[..., Path], folder: str
) -> None:
    def edit(data: Any) -> None:
        meta = next(iter(data["config"].values()))["tensor_meta"]
        meta["sizes"] = [{"as_int": 1 << 15}] * 2
        meta["strides"] = [{"as_int": 0}] * 2

    path = changed({WEIGHTS if folder == "weights" else CONSTANTS: _json(edit)})
    with pytest.raises(SourceError, match=r"32768\], 4294967296 bytes, of which the file holds"):
        read(path)


@pytest.mark.parametrize(("count", "refused"), [(8, False), (200, True)])
def test_many_names_of_one_weight_are_refused(
    changed: Callable[..., Path], count: int, refused: bool
) -> None:
    """The file has it once, and each name becomes a weight of its own."""

    def edit(data: Any) -> None:
        (name, payload), *_ = data["config"].items()
        for number in range(count - 1):
            data["config"][f"{name}{number}"] = payload
        for each in data["config"].values():
            each["tensor_meta"]["sizes"] = [{"as_int": 1 << 18}]
            each["tensor_meta"]["strides"] = [{"as_int": 0}]

    path = changed({WEIGHTS: _json(edit)})
    if refused:
        with pytest.raises(ValueError, match="one of more than 8 names of the same"):
            torch_trust.suspicions(path)
    else:
        assert torch_trust.suspicions(path) == []


class Spread(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.ones(1).expand(64, 4))

    def forward(self, x: Any) -> Any:
        return x + self.w[0]


def test_a_few_elements_that_stand_for_many_are_read(tmp_path: Path) -> None:
    path = tmp_path / "spread.pt2"
    torch.export.save(torch.export.export(Spread(), (torch.ones(3, 4),)), path)
    assert read(path).model is not None


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9**9",
        "9^9^9^9",
        "Pow(9, Pow(9, 9))",
        "Pow(Integer(9), Integer(999999999))",
        "Pow(b=9, e=999999999)",
        "Pow(2, Symbol('s0', integer=True))",
        "Pow(2, Rational(64, Pow(9, Pow(9, 9))))",
        "Pow(Pow(Pow(Pow(Pow(9, 64), 64), 64), 64), 64)",
        "PowByNatural(Integer(9), Integer(999999999))",
        "1 << (1 << 40)",
        "1 >> (1 << 40)",
        "LShift(1, 999999999999)",
        "RoundDecimal(5, -999999999999)",
        "Float('1e999999999999')",
        "Float('1', precision=999999999999)",
        "Float('1', 999999999999)",
        "1e-999999999999",
        "1e9_999_999_999",
        "(1,) * 10**10",
        "Add((1,) * 9, 1)",
        "Add(" * 60_000,
        "1" + " + 1" * 5000,
        "1" * 5000,
    ],
)
def test_expressions_that_do_not_end_are_refused(text: str) -> None:
    assert not is_size(text)


def test_sizes_that_pytorch_writes_are_no_code() -> None:
    for text in (
        "Symbol('s17', positive=True, integer=True)",
        "Add(Mul(Integer(2), Symbol('s0', positive=True, integer=True)), Integer(-1))",
        "FloorDiv(Symbol('s0', integer=True), Integer(2))",
        "Equality(Mod(Symbol('s0', integer=True), Integer(2)), Integer(0))",
        "Float('0.5', precision=53)",
        "Pow(Symbol('s0', positive=True, integer=True), Integer(2))",
        "Pow(Symbol('s0', positive=True, integer=True), Rational(1, 2))",
        "PowByNatural(Symbol('s0', integer=True), Integer(-1))",
        "Piecewise(ExprCondPair(Integer(1), true), (Integer(2), False))",
        "2*s0 + s1**2 - 3",
        "Max(Integer(1), Mul(Rational(1, 2), Symbol('s0', integer=True)))",
    ):
        assert is_size(text), text


def test_who_trusts_the_source_gets_it(
    plain: Path,
) -> None:
    assert guarded(group, ["inspect", str(plain), "--trust-source"]) == 0


def test_example_inputs_that_are_none_are_a_finding(plain: Path) -> None:
    program = torch.export.load(plain)
    program._example_inputs = ((torch.ones(3, 4),), [])
    with pytest.raises(SourceError, match="not a program that can be called"):
        read(program)


_TRIES = """
import socket
found = []
for act in (lambda: open({mark!r}, "w"), socket.socket):
    try:
        act()
        found.append(0)
    except OSError as error:
        found.append(error.errno)
raise RuntimeError(found)
"""


@pytest.mark.usefixtures("conversions_apart")
def test_who_looks_at_one_has_no_network_and_writes_nothing(
    plain: Path, tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read in this process, where PyTorch was there already."""
    (tmp_path / "torch.py").write_text(_TRIES.format(mark=str(mark)))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CrashedError, match="RuntimeError: ") as told:
        edgeinfer.inspect(plain)
    wrote, connected = json.loads(str(told.value).rpartition("RuntimeError: ")[2])
    lsm = Path("/sys/kernel/security/lsm")
    if lsm.exists() and "landlock" in lsm.read_text():
        assert (wrote, mark.exists()) == (13, False)
    if "Seccomp_filters" in Path("/proc/self/status").read_text():
        assert connected == 1


@pytest.mark.sweep
@pytest.mark.usefixtures("conversions_apart")
def test_an_honest_one_is_looked_at_within_bounds(plain: Path) -> None:
    """PyTorch and its exporter took more than a small file explains."""
    found: Any = edgeinfer.inspect(plain)
    assert (found.format, found.operators["Gemm"]) == ("pt2", 1)

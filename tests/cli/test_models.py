"""Arguments that name a model."""

import sys
from pathlib import Path

import pytest

from edgeinfer.bundle.storage import is_bundle
from edgeinfer.cli.models import named_model
from edgeinfer.convert.option_words import input_shapes
from edgeinfer.errors import UsageError


def test_a_path(tmp_path: Path) -> None:
    path = tmp_path / "net.v2.onnx"
    path.touch()
    named = named_model(str(path))
    assert (named.model, named.stem) == (path, "net.v2")


def test_a_missing_path() -> None:
    with pytest.raises(UsageError, match=r"none\.onnx: no such file"):
        named_model("none.onnx")


def script(folder: Path, body: str) -> str:
    path = folder / "net.py"
    path.write_text(body)
    return str(path)


def test_a_callable_gives_model_inputs_and_dynamic_shapes(tmp_path: Path) -> None:
    path = script(tmp_path, "def make():\n    return 'module', (1, 2), {'x': {0: 'batch'}}\n")
    named = named_model(f"{path}:make")
    assert (named.model, named.stem) == ("module", "net")
    assert named.arguments() == {
        "example_inputs": (1, 2),
        "dynamic_shapes": {"x": {0: "batch"}},
        "trust_source": False,
    }


def test_a_callable_may_give_the_model_alone(tmp_path: Path) -> None:
    named = named_model(script(tmp_path, "def make():\n    return 'program'\n") + ":make")
    assert named.model == "program"
    nothing = {"example_inputs": None, "dynamic_shapes": None, "trust_source": False}
    assert named.arguments() == nothing


def test_a_callable_finds_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_net.py").write_text("VALUE = 'found'\n")
    path = script(tmp_path, "import neighbour_of_net as n\nmake = lambda: n.VALUE\n")
    assert named_model(f"{path}:make").model == "found"


def test_a_net_without_pytorch_says_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "net_of_torch", raising=False)
    (tmp_path / "net_of_torch.py").write_text("import torch\n")
    with pytest.raises(UsageError, match=r"pip install 'edgeinfer\[torch\]'$"):
        named_model(f"{tmp_path / 'net_of_torch.py'}:make")


@pytest.mark.parametrize(
    ("body", "name", "problem"),
    [
        ("def make(): raise ValueError('no\\nweights')", "make", "failed: ValueError: no weights"),
        ("1 / 0", "make", "failed: ZeroDivisionError: division by zero"),
        ("def make(:", "make", "failed: SyntaxError"),
        ("x = 3", "make", "has no attribute 'make'"),
        ("x = 3", "x", "'int' object is not callable"),
        ("def make(): return (1,)", "make", "received 1 values"),
    ],
)
def test_a_callable_that_fails(tmp_path: Path, body: str, name: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        named_model(f"{script(tmp_path, body)}:{name}")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_python_is_not_run_unless_named(tmp_path: Path) -> None:
    path = script(tmp_path, "raise SystemExit('ran')")
    with pytest.raises(UsageError, match="name the callable"):
        named_model(path)


def test_a_script_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"none\.py: no such file"):
        named_model("none.py:make")


def test_what_is_meant_to_be_a_bundle(tmp_path: Path, bundle: Path, model: Path) -> None:
    renamed = bundle.rename(tmp_path / "bundle.bin")
    damaged = tmp_path / "damaged.edge"
    damaged.write_bytes(b"PK")
    folder = tmp_path / "folder"
    folder.mkdir()
    assert is_bundle(renamed)
    assert is_bundle(damaged)
    assert not is_bundle(model)
    assert not is_bundle(folder)
    (folder / "manifest.json").touch()
    assert is_bundle(folder)


def test_input_shapes() -> None:
    options = ["x=1,3,224,224", "serving:0= ? , 16", "a=b=2", "scalar="]
    assert input_shapes(options) == {
        "x": [(1, 3, 224, 224)],
        "serving:0": [(None, 16)],
        "a=b": [(2,)],
        "scalar": [()],
    }


@pytest.mark.parametrize("option", ["x", "=1,2", "x=1,,2", "x=1x2", "x=-1", "x=1.5", "x=N"])
def test_malformed_input_shapes(option: str) -> None:
    with pytest.raises(UsageError, match="expected NAME=1,3,224"):
        input_shapes([option])


def test_an_input_given_again_has_several_shapes() -> None:
    assert input_shapes(["x=1,2", "k=3", "x=2,2"]) == {"x": [(1, 2), (2, 2)], "k": [(3,)]}

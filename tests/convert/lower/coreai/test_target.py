import json
from pathlib import Path

import numpy as np
import pytest

from edgeinfer import profiles
from edgeinfer.convert.lower import target_for
from edgeinfer.convert.lower.coreai import ops as _families  # noqa: F401  (fills the registry)
from edgeinfer.convert.lower.coreai.target import BETA
from edgeinfer.convert.lower.target import LowerOptions
from edgeinfer.errors import NotAvailableError, UsageError
from tests.convert.lower.coreai.run import check, floats, lower, needs_coreai
from tests.convert.lower.coreml.run import model_of

NET = (
    "g (float[1,3,8,8] x) => (float[1,4] y) <float[4,3,1,1] w = "
    "{1.,2.,3.,4.,5.,6.,7.,8.,9.,10.,11.,12.}> "
    "{c = Conv(x, w) r = Relu(c) p = GlobalAveragePool(r) y = Flatten(p)}"
)


@pytest.mark.parametrize("name", ["ios27", "macos27"])
def test_targets_are_marked_as_beta(name: str) -> None:
    profile = profiles.load(name)
    assert "beta" in profile.title
    assert profile.formats == ("aimodel",)
    assert target_for("aimodel").format == "aimodel"


@needs_coreai
def test_same_model_gives_same_bytes(tmp_path: Path) -> None:
    contents = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        made = lower(NET, folder)
        contents.append([(f.relative_to(folder), f.read_bytes()) for f in made.files])
    assert contents[0] == contents[1]
    assert [p.as_posix() for p, _ in contents[0]] == [
        "model.aimodel/metadata.json",
        "model.aimodel/main.hash",
        "model.aimodel/main.mlirb",
    ]


@needs_coreai
def test_asset_and_report_say_what_it_was_not_run_on(tmp_path: Path) -> None:
    made = lower(NET, tmp_path)
    said = json.loads(made.files[0].read_text(encoding="utf-8"))["description"]
    assert "not by Core AI on a device" in said
    assert BETA in made.notes


@needs_coreai
@pytest.mark.parametrize(("asked", "found"), [("fp32", "fp32"), ("fp16", "fp16+fp32")])
def test_precision_is_read_from_the_asset(tmp_path: Path, asked: str, found: str) -> None:
    made = lower(NET, tmp_path, asked)
    assert made.precision == found
    assert made.ops["conv2d"] == 1


@needs_coreai
def test_names_of_all_kinds_survive() -> None:
    x = floats(2)
    check('g (float[2] "a:0/b") => (float[2] "{1: y}") {"{1: y}" = Neg("a:0/b")}', {"a:0/b": x})


@needs_coreai
def test_inputs_and_constants_may_be_outputs() -> None:
    text = "g (float[n] x) => (float[n] y, float[n] z, float[2] c) <float[2] w = {1.0,2.0}> "
    check(text + "{y = Identity(x) z = Identity(x) c = Identity(w)}", {"x": floats(3)})


@needs_coreai
def test_other_precisions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="precision 'static_wi8_ai8'"):
        lower(NET, tmp_path, "static_wi8_ai8")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise ModuleNotFoundError("No module named 'coreai'")

    monkeypatch.setattr("edgeinfer.convert.lower.coreai.target.import_coreai", absent)
    with pytest.raises(NotAvailableError, match=r"pip install 'edgeinfer\[coreai\]'"):
        target_for("aimodel").check(model_of(NET), profiles.load("ios27"), LowerOptions())


@needs_coreai
def test_scalars() -> None:
    check("g (float x) => (float y) {y = Neg(x)}", {"x": np.full((), 3, np.float32)})

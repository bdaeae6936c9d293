"""The wheel that a device gets: what it says of itself, and that it holds no converter."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

from release.runtime_wheel import CONVERTING, LARGEST, ROOT, build, project

MAIN = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_extras_bring_no_converter() -> None:
    made = project(MAIN, "1.2.3")
    needs = " ".join(n for found in made["optional-dependencies"].values() for n in found)
    assert not {"onnx-ir", "torch", "onnxscript"} & set(needs.replace(">", " ").split())
    assert "edgeinfer[" not in needs
    assert {"pi", "jetson", "nuc", "mac"} <= set(made["optional-dependencies"])
    assert set(MAIN["optional-dependencies"]) >= CONVERTING


def test_what_is_left_out_is_no_entry_point() -> None:
    backends = project(MAIN, "1.2.3")["entry-points"]["edgeinfer.backends"]
    own = MAIN["entry-points"]["edgeinfer.backends"]
    assert own.keys() - backends.keys() == {"coreml-reference"}


def test_it_takes_an_older_python_than_the_converter() -> None:
    made = project(MAIN, "1.2.3")
    assert (made["requires-python"], MAIN["requires-python"]) == (">=3.10", ">=3.11")
    assert any(line.endswith(":: 3.10") for line in made["classifiers"])
    assert any(need.startswith("tomli") for need in made["dependencies"])


def test_lines_of_the_readme_name_extras_that_exist() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    extras = project(MAIN, "1.2.3")["optional-dependencies"]
    for device in ("pi", "jetson", "nuc", "mac"):
        assert f"-py3-none-any.whl[{device}]'" in text
        assert device in extras


def test_a_checkout_without_links_says_so(tmp_path: Path) -> None:
    (tmp_path / "src" / "edgeinfer").mkdir(parents=True)
    (tmp_path / "src" / "edgeinfer" / "backends").write_text("../../backends")
    (tmp_path / "setup.py").write_bytes((ROOT / "setup.py").read_bytes())
    command = (sys.executable, "setup.py", "--version")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("edgeinfer: this checkout has no links: src/edgeinfer/backends")
    assert "Developer Mode" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_wheel_is_small_and_holds_no_converter(tmp_path: Path) -> None:
    made = build(tmp_path)
    assert made.stat().st_size <= LARGEST
    names = zipfile.ZipFile(made).namelist()
    assert "edgeinfer/runtime/session.py" in names
    assert "edgeinfer/profiles/rpi5.toml" in names
    assert not [n for n in names if n.startswith(("edgeinfer/convert", "edgeinfer/kernels"))]
    commands = {n.rpartition("/")[2] for n in names if n.startswith("edgeinfer/cli/")}
    assert {"run.py", "bench.py", "doctor.py"} <= commands
    assert not {"convert.py", "check.py", "tune.py", "join.py"} & commands
    evaluator = [n for n in names if n.startswith("edgeinfer/backends/coreml_reference/")]
    assert "edgeinfer/backends/coreml_reference/package.py" in evaluator, "Core ML reads with it"
    assert not [n for n in evaluator if "/ops/" in n or n.endswith("evaluate.py")]

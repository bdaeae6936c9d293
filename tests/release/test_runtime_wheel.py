"""The wheel that a device gets: what it says of itself, and that it holds no converter."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import edgeinfer
from edgeinfer.cli.group import COMMANDS
from release.runtime_wheel import CONVERTING, LARGEST, ROOT, build, project
from tests.architecture.tree import Module, modules

BY_NAME = {
    *("edgeinfer.media.live", "edgeinfer.tracking"),  # documented, for users
    "edgeinfer.runtime.pipelines.code_trial",  # a process of its own
}
"""What nothing in the package imports and yet is used."""

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


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files of the wheel."""
    made = build(tmp_path_factory.mktemp("wheel"))
    assert made.stat().st_size <= LARGEST
    return set(zipfile.ZipFile(made).namelist())


def test_it_holds_no_converter(names: set[str]) -> None:
    assert "edgeinfer/runtime/session.py" in names
    assert "edgeinfer/profiles/rpi5.toml" in names
    assert not [n for n in names if n.startswith(("edgeinfer/convert", "edgeinfer/kernels"))]
    assert not [n for n in names if n.startswith("edgeinfer/profiles/quantization")]
    commands = {n.rpartition("/")[2] for n in names if n.startswith("edgeinfer/cli/")}
    assert {"run.py", "bench.py", "doctor.py"} <= commands
    assert not {"convert.py", "check.py", "compare.py", "tune.py", "join.py"} & commands
    evaluator = [n for n in names if n.startswith("edgeinfer/backends/coreml_reference/")]
    assert "edgeinfer/backends/coreml_reference/package.py" in evaluator, "Core ML reads with it"
    assert not [n for n in evaluator if "/ops/" in n or n.endswith("evaluate.py")]


def _modules(names: set[str]) -> dict[str, Module]:
    return {m.name: m for m in modules() if str(m.path.relative_to(ROOT / "src")) in names}


def test_no_module_needs_one_that_is_left_out(names: set[str]) -> None:
    inside = _modules(names)
    away = {module.name for module in modules()} - inside.keys()
    needed = {
        (name, found.module)
        for name, module in inside.items()
        for found in module.imports
        if not found.deferred and {found.module, found.module.rpartition(".")[0]} & away
    }
    assert needed == set()


def test_it_holds_nothing_that_nothing_in_it_uses(names: set[str]) -> None:
    by_name = _modules(names)
    backends = project(MAIN, "1.2.3")["entry-points"]["edgeinfer.backends"].values()
    open_names = {"edgeinfer", "edgeinfer.__main__", *edgeinfer._LAZY.values(), *BY_NAME}
    open_names |= {f"edgeinfer.cli.{name}" for name in COMMANDS}
    open_names |= {place.partition(":")[0] for place in backends}
    used: set[str] = set()
    while open_names := (open_names & by_name.keys()) - used:
        used |= open_names
        imported = {i.module for name in open_names for i in by_name[name].imports}
        # The last part may be a name in a module, and a folder is read with each of its modules.
        open_names = {
            ".".join(parts[:n])
            for parts in (name.split(".") for name in imported)
            for n in range(1, len(parts) + 1)
        }
    assert sorted(by_name.keys() - used) == []

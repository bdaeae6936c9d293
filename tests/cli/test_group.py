"""The command as a whole: help, version, guesses, and how fast it starts."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgeinfer import __version__
from edgeinfer.cli.group import COMMANDS

HELP = """\
Usage: edgeinfer [OPTIONS] COMMAND [ARGS]...

  One trained model in, the fastest right artifact on every edge device.

  Exit codes: 0 fine, 1 a finding about the model, 2 usage, 3 environment.

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Commands:
  convert     Convert MODEL, check it, and write one bundle.
  check       List every node that a target cannot express.
  inspect     Show inputs, outputs, operators, sizes and precision.
  run         Run BUNDLE on images, recordings or arrays.
  generate    Let the language model of BUNDLE go on with PROMPT.
  chat        Talk with the language model of BUNDLE.
  serve       Serve BUNDLES over HTTP and gRPC: tensors and language models.
  verify      Check BUNDLE here, with its own test vectors.
  eval        Measure how right BUNDLE is on DATA, whose answers are known.
  compare     Compare B with A on the same inputs, whoever made them.
  bench       Time every artifact on every engine here.
  build       Build the engines of BUNDLE for this device, ahead of the first load.
  extract     Write artifacts of BUNDLE as plain files.
  join        Make one Core ML package with several functions.
  tune        Search for faster schedules for MODEL's hottest kernels.
  sign        Sign BUNDLE with an Ed25519 key.
  encrypt     Encrypt BUNDLE for a device whose storage others can read.
  decrypt     Decrypt BUNDLE.
  targets     List the devices that models can be converted for.
  devices     Show this machine and what each engine can use of it.
  doctor      Look for what is missing here and say how to get it.
  cache       Show or empty the cache of bundles, measurements and engines.
  completion  Print what makes a shell complete commands.
"""

HEAVY = {"numpy", "onnx", "onnx_ir", "onnxruntime", "openvino", "rich", "torch", "PIL"}


def test_help(cli: Any) -> None:
    result = cli("--help")
    assert (result.code, result.out) == (0, HELP)


def test_nothing_at_all_shows_the_help(cli: Any) -> None:
    result = cli()
    assert result.code == 2
    assert result.err.rstrip() == HELP.rstrip()


def test_version(cli: Any) -> None:
    assert cli("--version").out == f"edgeinfer {__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(cli: Any, command: str) -> None:
    result = cli(command, "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: edgeinfer {command} ")


def test_a_misspelt_command_is_guessed(cli: Any) -> None:
    result = cli("convrt")
    assert result.code == 2
    expected = "no command 'convrt', did you mean 'convert'?; see 'edgeinfer --help'"
    assert result.err == f"edgeinfer: {expected}\n"


def test_an_unknown_command_is_not_guessed(cli: Any) -> None:
    assert cli("xyzzy").err == "edgeinfer: no command 'xyzzy'; see 'edgeinfer --help'\n"


def test_without_the_converter_its_commands_say_so() -> None:
    script = (
        "import sys\n"
        "sys.modules['edgeinfer.convert'] = None\n"
        "from edgeinfer.cli.failures import guarded\n"
        "from edgeinfer.cli.group import edgeinfer\n"
        "assert guarded(edgeinfer, ['--help']) == 0\n"
        "assert guarded(edgeinfer, ['convert', 'net.onnx', '-t', 'rpi5']) == 3\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert b"convert     Needs the converter, which is not installed." in done.stdout
    assert b"runs bundles and converts nothing" in done.stderr


REFUSED = (
    ("--help", 0),
    ("convert none.onnx -t rpi5", 2),
    ("convert empty.onnx -t rpi5", 1),
    ("check empty.onnx -t rpi5", 1),
    ("convert text.onnx -t rpi5", 1),
    ("convert text.onnx -t none", 2),
    ("convert text.onnx -t rpi5 --precision none", 2),
    ("convert text.onnx -t rpi5 --calibrator none", 2),
    ("convert text.onnx -t rpi5 --io-dtype none", 2),
    ("convert text.onnx -t rpi5 --random none", 2),
    ("convert text.onnx -t rpi5 --data none.npz", 2),
    ("convert text.onnx -t rpi5 -o result.zip", 2),
)


def test_help_and_refusals_import_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "text.onnx").write_text("some text")
    script = (
        "import sys\n"
        "from edgeinfer.cli.failures import guarded\n"
        "from edgeinfer.cli.group import edgeinfer\n"
        f"for line, code in {REFUSED}:\n"
        "    assert guarded(edgeinfer, line.split()) == code, line\n"
        f"    assert not {HEAVY} & sys.modules.keys(), line\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()


MOST = 240
"""Modules that ``--help`` may load beyond the interpreter's own; NumPy would be 140 more."""


def test_help_is_quick() -> None:
    """Counted, not timed: neither the processor nor what else the machine does decides."""
    script = (
        "import sys\n"
        "before = len(sys.modules)\n"
        "from edgeinfer.cli.failures import guarded\n"
        "from edgeinfer.cli.group import edgeinfer\n"
        "assert guarded(edgeinfer, ['--help']) == 0\n"
        "print(len(sys.modules) - before, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert int(done.stderr) <= MOST


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_the_program(cli: Any, shell: str) -> None:
    result = cli("completion", shell)
    assert result.code == 0
    assert f"_EDGEINFER_COMPLETE={shell}_complete" in result.out


def test_completion_completes() -> None:
    env = {
        **os.environ,
        "_EDGEINFER_COMPLETE": "bash_complete",
        "COMP_WORDS": "edgeinfer ver",
        "COMP_CWORD": "1",
    }
    command = [sys.executable, "-c", "from edgeinfer.cli import main; main()"]
    done = subprocess.run(command, capture_output=True, check=False, env=env, text=True)
    assert done.stdout == "plain,verify\n"

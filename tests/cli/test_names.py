"""Options that take one of several names: what help lists, Tab completes and people type."""

import shlex
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete

from edgeinfer import profiles
from edgeinfer.cli.convert import SECTIONS, convert
from edgeinfer.cli.group import COMMANDS, edgeinfer
from edgeinfer.convert.quantize.recipe import METHODS, RECIPES
from edgeinfer.runtime.select import POLICIES


def completed(*words: str) -> list[str]:
    """Complete the last word."""
    shell = ShellComplete(edgeinfer, {}, "edgeinfer", "_EDGEINFER_COMPLETE")
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("convert", "-t", "rp"), {"rpi4", "rpi5"}),
        (("convert", "-t", "raspberrypi"), {"raspberrypi4", "raspberrypi5"}),
        (("convert", "--precision", "static_wi8_ai1"), {"static_wi8_ai16"}),
        (("convert", "--precision", "int"), {"int8", "int4"}),
        (("convert", "--calibrator", "m"), {"minmax", "mse"}),
        (("convert", "--deployment", "iOS1"), {"iOS15", "iOS16", "iOS17", "iOS18"}),
        (("check", "-t", "jetson-t"), {"jetson-thor"}),
        (("run", "--backend", "onnxruntime-t"), {"onnxruntime-tensorrt"}),
        (("run", "--policy", "l"), {"latency"}),
        (("verify", "-b", "lit"), {"litert"}),
        (("extract", "-t", "andr"), {"android"}),
    ],
)
def test_tab_completes_names(words: tuple[str, ...], expected: set[str]) -> None:
    assert expected <= set(completed(*words))
    assert all(found.startswith(words[-1]) for found in completed(*words))


def test_tab_completes_paths_of_profiles() -> None:
    shell = ShellComplete(edgeinfer, {}, "edgeinfer", "_EDGEINFER_COMPLETE")
    (item,) = shell.get_completions(["convert", "-t"], "./bo")
    assert (item.type, item.value) == ("file", "./bo")


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("convert", (*profiles.names(), "all", *RECIPES, "auto", *METHODS, "coremltools")),
        ("run", POLICIES),
        ("bench", ("onnxruntime", "openvino", "litert")),
    ],
)
def test_help_lists_names(cli: Any, command: str, names: tuple[str, ...]) -> None:
    # Long lists are broken at hyphens.
    text = "".join(cli(command, "--help").out.split())
    assert [n for n in names if n not in text] == []


def test_every_option_that_takes_one_of_several_names_lists_them() -> None:
    """An option whose value is called NAME and that lists nothing is one of these few."""
    free = {"metric", "expect_name", "cache_type", "draft", "device_name", "adapter"}
    context = click.Context(edgeinfer)
    commands = [edgeinfer.get_command(context, name) for name in COMMANDS]
    silent = {
        option.name
        for command in commands
        for option in (command.params if command is not None else ())
        if isinstance(option, click.Option)
        and option.metavar == "NAME"
        and not isinstance(option.type, click.Choice)
    }
    assert silent <= free


def test_help_of_convert_is_in_sections_that_hold_each_option_once() -> None:
    named = [name for section in SECTIONS for name in section.names]
    options = {p.name for p in convert.params if isinstance(p, click.Option)}
    assert sorted(named) == sorted(n for n in options if n)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda s: s.title)
def test_each_section_has_an_example_that_holds_options_of_it(section: Any) -> None:
    program, command, *words = shlex.split(section.example)
    assert (program, command) == ("edgeinfer", "convert")
    given = convert.make_context("convert", words).params
    assert any(given[name] for name in section.names)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("tflite", "it is a format; targets that write it: android, rpi4, rpi5"),
        ("coreml", "it is an engine; targets that it runs: ios, macos"),
        ("tensorrt", "it is an engine; targets that it runs: jetson, jetson-orin, jetson-thor"),
        ("jetson-nano", "the Jetson Orin Nano is jetson-orin"),
        ("raspberrypi", "name the model: rpi5 or rpi4"),
        ("windows", "cpu is for the machine that converts"),
        ("TFLite", "it is a format"),
        ("hailo", "no target writes for it"),
    ],
)
def test_what_is_no_target_gets_the_right_hint(cli: Any, word: str, told: str) -> None:
    result = cli("convert", "net.onnx", "-t", word)
    assert result.code == 2
    assert f"unknown target '{word}': {told}" in result.err


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("raspberrypi5", "rpi5"),
        ("jetson-orin-nano", "jetson-orin"),
        ("iphone", "ios"),
        ("nuc", "openvino"),
    ],
)
def test_devices_go_by_the_names_that_people_type(alias: str, name: str) -> None:
    given = convert.make_context("convert", ["net.onnx", "-t", alias]).params
    assert given["targets"] == (name,)


def test_an_unknown_precision_is_told_before_the_model_is_looked_at(cli: Any) -> None:
    result = cli("convert", "missing.onnx", "-t", "cpu", "--precision", "int9")
    assert (result.code, "'int9' is unknown" in result.err) == (2, True)


def test_a_backend_by_the_name_of_its_format_is_guessed(cli: Any) -> None:
    assert "did you mean 'litert'?" in cli("run", "net.edge", "-b", "tflite").err

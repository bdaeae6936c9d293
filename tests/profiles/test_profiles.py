import dataclasses
import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

from edgeinfer import profiles
from edgeinfer.convert.lower import FORMATS
from edgeinfer.errors import ProfileError
from edgeinfer.profiles.reader import parse
from edgeinfer.profiles.schema import Profile, Quirk, chip_of

ROOT = Path(profiles.__file__).parent

MINIMAL = """
name = "board"
title = "A board"
os = ["linux"]
arch = []
formats = ["onnx"]
backends = ["onnxruntime"]
precisions = ["fp32"]
"""


def test_shipped_profiles_are_the_three_targets_of_this_machine() -> None:
    assert set(profiles.names()) >= {"cpu", "onnxruntime", "openvino"}


@pytest.mark.parametrize("name", profiles.names())
def test_shipped_profile_names_formats_and_backends_that_exist(name: str) -> None:
    profile = profiles.load(name)
    backends = {e.name for e in importlib.metadata.entry_points(group="edgeinfer.backends")}
    assert profile.name == name
    assert set(profile.formats) | set(profile.optional_formats) <= set(FORMATS)
    assert set(profile.backends) <= backends


@pytest.mark.parametrize("name", profiles.names())
def test_every_quirk_has_a_source(name: str) -> None:
    for quirk in profiles.load(name).quirks:
        assert re.match(r"https://|measured: |wheel tag ", quirk.source), quirk.id


def test_cpu_takes_openvino_only_where_it_is_installed() -> None:
    cpu = profiles.load("cpu")
    assert cpu.formats == ("onnx",)
    assert cpu.optional_formats == ("openvino_ir",)
    assert cpu.backends == ("onnxruntime", "openvino")


def test_every_field_is_documented() -> None:
    for cls in (Profile, Quirk):
        for field in dataclasses.fields(cls):
            assert f"\n        {field.name}: " in (cls.__doc__ or ""), field.name


def test_profile_is_read_by_path(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text(MINIMAL + '[[quirks]]\nid = "q"\nwhat = "w"\nsource = "s"\n')
    profile = profiles.load(str(path))
    assert profile.name == "board"
    assert profile.quirks == (Quirk("q", "w", "s"),)
    assert profile.arch == ()
    assert profile.memory_mb is None


def test_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"none\.toml: cannot be read"):
        profiles.load(str(tmp_path / "none.toml"))


def test_binary_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProfileError, match="cannot be read"):
        profiles.load(str(tmp_path / "a.toml"))


def test_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(ProfileError, match="did you mean 'openvino'"):
        profiles.load("openvin")


@pytest.mark.parametrize("name", ["", "../cpu", "cpu.toml", "CPU"])
def test_no_name_reaches_into_a_folder(name: str) -> None:
    with pytest.raises(ProfileError):
        profiles.load(name)


def test_all_faults_of_a_file_are_listed_with_file_and_key() -> None:
    text = MINIMAL.replace('["fp32"]', '["fp33", 1]').replace('os = ["linux"]', "os = []")
    text = text.replace('name = "board"', 'name = "../x"')
    text += (
        "colour = 1\nmemory_mb = true\nthreads = 0\naliases = 'a'\n[[quirks]]\nid = 'a'\nx = 1\n"
    )
    with pytest.raises(ProfileError) as caught:
        parse(text, "b.toml")
    assert str(caught.value).splitlines() == [
        "b.toml: colour: unknown key; known: name, title, os, arch, formats, backends, precisions, "
        "optional_formats, accelerators, unit, memory_mb, threads, quirks, quantization, aliases, "
        "deployment, machine, machine_code, strongly_typed, split_attention, fp16_ops, bf16_ops, "
        "by_name_only, packed_weights, chips, computes",
        "b.toml: name: '../x' is not a name (lower-case letters, digits, '.', '_', '-')",
        "b.toml: os: expected at least one entry",
        "b.toml: precisions[0]: unknown value 'fp33'; known: bf16, dynamic_wi8_afp32, fp16, fp32, "
        "fp8, static_wi8_ai16, static_wi8_ai8, static_wi8_ai8+fp16, weight_only_wi4b32_afp16, "
        "weight_only_wi4b32_afp32, weight_only_wi8_afp16, weight_only_wi8_afp32",
        "b.toml: precisions[1]: expected a text, received 1",
        "b.toml: memory_mb: expected a whole number above 0, received True",
        "b.toml: threads: expected a whole number above 0, received 0",
        "b.toml: quirks[0].x: unknown key; known: id, what, source, versions",
        "b.toml: quirks[0].what: missing",
        "b.toml: quirks[0].source: missing",
        "b.toml: aliases: expected a list of texts, received 'a'",
    ]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('optional_formats = ["onnx"]', "'onnx' is required already"),
        ('aliases = ["board"]', "'board' is the name already"),
        ('accelerators = ["gpu", "gpu"]', "'gpu' is listed twice"),
        ('quirks = ["a"]', "expected a table"),
    ],
)
def test_contradiction_is_found(line: str, fault: str) -> None:
    with pytest.raises(ProfileError, match=re.escape(fault)):
        parse(MINIMAL + line, "b.toml")


def test_missing_keys_are_all_named() -> None:
    with pytest.raises(ProfileError) as caught:
        parse("", "b.toml")
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == [
        "name", "title", "os", "arch", "formats", "backends", "precisions",
    ]  # fmt: skip


def test_text_that_is_not_toml_is_one_line() -> None:
    with pytest.raises(ProfileError, match=r"b\.toml: not TOML: "):
        parse("name = ", "b.toml")


def test_the_chip_of_a_processors_name() -> None:
    macs, phones = (profiles.load(name).chips for name in ("macos", "ios"))
    found = [chip_of(macs, f"Apple {name}") for name in ("M1", "M2 Pro", "M4 Max", "M10")]
    assert [chip and (chip.name, chip.has_int8) for chip in found] == [
        ("M1", False),
        ("M2", False),
        ("M4", True),
        None,
    ]
    assert [c.name for c in phones if not c.has_int8] == ["A15", "A16", "M1", "M2", "M3"]
    pro = chip_of(phones, "A18 Pro")
    assert pro is not None
    assert pro.name == "A18 Pro"


def test_tables_of_quantization_are_used_and_each_stands_once() -> None:
    folder = Path(profiles.__file__).parent / "quantization"
    named = [
        name
        for path in folder.parent.glob("*.toml")
        for name in tomllib.loads(path.read_text("utf-8")).get("quantization", ())
    ]
    files = {path.stem: path for path in folder.glob("*.toml")}
    assert set(named) == files.keys()
    tables = [tomllib.loads(path.read_text("utf-8")) for path in files.values()]
    assert [t for i, t in enumerate(tables) if t in tables[:i]] == []


def test_a_device_without_the_tables_reads_its_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = profiles.load("rpi5")
    text = (ROOT / "rpi5.toml").read_text("utf-8")
    monkeypatch.setattr("importlib.resources.files", lambda _: tmp_path)
    found = parse(text, "rpi5.toml")
    assert found == dataclasses.replace(whole, quantization=())


def test_a_table_that_does_not_exist_is_a_fault() -> None:
    text = (Path(profiles.__file__).parent / "cpu.toml").read_text("utf-8")
    with pytest.raises(ProfileError, match="unknown table 'openvin'; known: coreml, onnxruntime"):
        parse(text.replace('"openvino"]\n', '"openvin"]\n'), "a.toml")

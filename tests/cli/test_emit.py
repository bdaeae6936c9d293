"""Files that ``serve --emit`` prints: their programs read them, and they run a server."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.bundle.opening import Opening
from edgeinfer.bundle.sealing import KEY_FILE_ENV
from edgeinfer.cli import emit
from edgeinfer.installed import RUNTIME
from edgeinfer.options import options_of
from edgeinfer.runtime.options import SessionOptions
from tests.cli.test_serve import answered, asked_of
from tests.runtime.pipelines.conftest import write_graph

KEY = "a-key-of-enough-letters"
NET = "net (float[N] x) => (float[N] y) { y = Add(x, x) }"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "models $x 10%"
    folder.mkdir()
    write_graph(folder, "net", NET)
    write_graph(tmp_path, "net", NET)
    (tmp_path / "keys").write_text(f"{KEY}\n")
    return tmp_path


def emitted(cli: Any, *given: object) -> str:
    result = cli("serve", *given)
    assert result.code == 0, result.err
    return str(result.out)


def words(unit: str) -> list[str]:
    """Return the command of a unit as systemd reads it."""
    (line,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    return [w.replace("%%", "%").replace("$$", "$") for w in shlex.split(line)]


def unit(cli: Any, files: Path) -> str:
    given = [str(files / "net.edge"), f"other={files / 'models $x 10%' / 'net.edge'}"]
    more = ["--keys", str(files / "keys"), "--port", "9001", "--isolate", "--allow-native"]
    return emitted(cli, *given, *more, "--disk", str(files / "disk"), "--emit", "systemd")


def test_a_unit_runs_the_same_command(cli: Any, files: Path) -> None:
    text = unit(cli, files)
    assert words(text) == [
        *(sys.executable, "-m", "edgeinfer", "serve"),
        *("--port", "9001", "--keys", "${CREDENTIALS_DIRECTORY}/keys", "--isolate"),
        *("--disk", str(files / "disk"), "--allow-native"),
        *(f"net={files / 'net.edge'}", f"other={files / 'models $x 10%' / 'net.edge'}"),
    ]
    assert f"LoadCredential=keys:{files / 'keys'}\n" in text
    assert "\nCapabilityBoundingSet=\n" in text
    for limit in ("MemoryMax", "TasksMax", "LimitNOFILE", "TimeoutStopSec=10", "NoNewPrivileges"):
        assert f"\n{limit}" in text
    low = emitted(cli, str(files / "net.edge"), "--port", "80", "--emit", "systemd")
    assert "\nAmbientCapabilities=CAP_NET_BIND_SERVICE\n" in low


def test_systemd_takes_the_unit(cli: Any, files: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    file = files / "edgeinfer.service"
    file.write_text(unit(cli, files))
    done = subprocess.run([program, "verify", str(file)], capture_output=True, text=True)
    # What other units of this machine lack is not ours.
    assert [line for line in done.stderr.splitlines() if "edgeinfer.service" in line] == []
    assert done.returncode == 0
    wrong = file.read_text().replace("MemoryMax=90%", "MemoryMax=many")
    file.write_text(wrong)
    done = subprocess.run([program, "verify", str(file)], capture_output=True, text=True)
    assert "Invalid memory limit" in done.stderr


@pytest.mark.parametrize("kind", ["systemd", "compose", "kserve"])
def test_keys_of_other_servers_are_not_written(
    cli: Any, files: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("EDGEINFER_UPSTREAM_KEY_BIG", "a-secret-of-another")
    keys = ("--keys", str(files / "keys"), "--emit", kind)
    text = emitted(cli, "--upstream", "big=https://other", "--upstream", "b=http://other", *keys)
    assert text.startswith("# Wanted in its environment: EDGEINFER_UPSTREAM_KEY_BIG\n")
    assert "a-secret-of-another" not in text
    assert KEY not in text


@pytest.mark.slow
def test_the_unit_is_a_server(cli: Any, files: Path) -> None:
    command = [w.replace("${CREDENTIALS_DIRECTORY}", str(files)) for w in words(unit(cli, files))]
    command[command.index("9001")] = "0"
    env = {**os.environ, "XDG_CACHE_HOME": str(files / "cache")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as server:
        assert server.stderr is not None
        try:
            url = server.stderr.readline().split()[-1]
            found = None
            while found is None:
                found = answered(asked_of(f"{url}/v2/models/other/generate", {"x-api-key": KEY}))
            assert found["y"] == [2, 4]
        finally:
            server.send_signal(signal.SIGTERM)


def test_compose_reads_its_file(cli: Any, files: Path) -> None:
    yaml = pytest.importorskip("yaml")
    given = [str(files / "net.edge"), f"other={files / 'models $x 10%' / 'net.edge'}"]
    keys = ("--keys", str(files / "keys"))
    whole = yaml.safe_load(emitted(cli, *given, *keys, "--emit", "compose", "--image", "mine:1"))
    service = whole["services"]["edgeinfer"]
    assert service["image"] == "mine:1"
    assert service["command"] == [
        *("edgeinfer", "serve", "--host", "0.0.0.0", "--keys", "/run/secrets/keys"),
        *("net=/models/net.edge", "other=/models/1-net.edge"),
    ]
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    assert whole["secrets"] == {"keys": {"file": str(files / "keys")}}
    mounts = {v["target"]: v["source"] for v in service["volumes"] if v["type"] == "bind"}
    assert mounts["/models/1-net.edge"] == str(files / "models $x 10%" / "net.edge").replace(
        "$", "$$"
    )
    assert all(v["read_only"] for v in service["volumes"] if v["type"] == "bind")
    assert service["read_only"] is True
    # The check of health is a program.
    compile(service["healthcheck"]["test"][-1], "health", "exec")


def test_kserve_gets_an_inference_service(cli: Any, files: Path) -> None:
    yaml = pytest.importorskip("yaml")
    pipeline = f"both={files / 'net.edge'},{files / 'models $x 10%' / 'net.edge'}"
    given = ("--pipeline", pipeline, "--keys", str(files / "keys"), "--port", "8080")
    whole = yaml.safe_load(emitted(cli, *given, "--emit", "kserve"))
    assert (whole["apiVersion"], whole["kind"]) == (
        *("serving.kserve.io/v1beta1", "InferenceService"),
    )
    predictor = whole["spec"]["predictor"]
    (container,) = predictor["containers"]
    assert container["name"] == "kserve-container"
    assert container["command"] == [
        *("edgeinfer", "serve", "--pipeline", "both=/mnt/models/net.edge,/mnt/models/1-net.edge"),
        *("--host", "0.0.0.0", "--port", "8080", "--keys", "/etc/edgeinfer/keys"),
    ]
    assert container["ports"][0]["containerPort"] == 8080
    mounted = {m["name"] for m in container["volumeMounts"]}
    assert mounted == {v["name"] for v in predictor["volumes"]} == {"models", "cache", "keys"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/v2/health/ready", "port": 8080}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("--emit", "systemd", "nothing.edge"), "nothing.edge: nothing is there"),
        (("--emit", "systemd", "--port", "0", "net.edge"), "give a --port"),
        (("--emit", "compose", "net.edge"), "give --keys FILE, or --insecure"),
        (("--emit", "kserve", "net.edge"), "give --keys FILE, or --insecure"),
        (
            *(("--emit", "kserve", "--certificate", "keys", "--private-key", "keys"),),
            "the cluster's gateway speaks TLS",
        ),
    ],
)
def test_what_cannot_run_there(
    cli: Any, files: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], text: str
) -> None:
    monkeypatch.chdir(files)
    result = cli("serve", *given, "net.edge")
    assert result.code == 2
    assert text in result.err
    assert result.out == ""


@pytest.mark.parametrize("kind", ["systemd", "compose", "kserve"])
@pytest.mark.parametrize(
    "odd", ["x\ny", "x\ry", "x\ty", "x\x1by", "x\u2028y", "x\x85y", "x\u202ey"]
)
def test_no_line_begins_in_a_name(cli: Any, files: Path, kind: str, odd: str) -> None:
    folder = files / odd
    folder.mkdir()
    for name in ("net.edge", "keys"):
        shutil.copy(files / name, folder / name)
    (files / "link.edge").symlink_to(folder / "net.edge")
    net, keys = f"net={files / 'net.edge'}", ("--keys", str(files / "keys"))
    for given in (
        (f"net={folder / 'net.edge'}", *keys),
        # The name is of what the link leads to.
        (f"net={files / 'link.edge'}", *keys),
        (net, "--keys", str(folder / "keys")),
        (net, *keys, "--disk", str(folder)),
        (net, *keys, "--image", odd),
        (net, *keys, "--host", odd),
        (net, *keys, "--pipeline", f"both={folder / 'net.edge'},{files / 'net.edge'}"),
    ):
        result = cli("serve", "--emit", kind, "--insecure", *given)
        assert (result.code, result.out) == (2, ""), given
        assert "control characters" in result.err or "--host" in given, (given, result.err)


@pytest.mark.parametrize("kind", ["systemd", "compose", "kserve"])
def test_a_folder_may_have_an_equals_sign(
    cli: Any, files: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = files / "a=b"
    folder.mkdir()
    shutil.copy(files / "net.edge", folder / "net.edge")
    given = (f"net={folder / 'net.edge'}", "--keys", str(files / "keys"), "--emit", kind)
    text = emitted(cli, *given)
    assert f"net={folder}/net.edge" in text or "net=/m" in text
    # A path next to which no name was given gets one, too: its folder may have the sign.
    monkeypatch.chdir(folder)
    assert emitted(cli, "net.edge", *given[1:]) == text
    with_comma = files / "a,b.edge"
    shutil.copy(files / "net.edge", with_comma)
    (files / "plain.edge").symlink_to(with_comma)
    both = f"both={files / 'net.edge'},{files / 'plain.edge'}"
    refused = cli("serve", "--pipeline", both, *given[1:])
    assert refused.code == 2
    assert "comma" in refused.err


def test_names_are_not_expanded_by_who_reads_the_file(cli: Any, files: Path) -> None:
    yaml = pytest.importorskip("yaml")
    write_graph(files, "a$$(HOME)b", NET)
    given = ("x=" + str(files / "a$$(HOME)b.edge"), "--insecure", "--emit")
    (found,) = [
        word
        for word in yaml.safe_load(emitted(cli, *given, "kserve"))["spec"]["predictor"][
            "containers"
        ][0]["command"]
        if "HOME" in word
    ]
    # To Kubernetes two are one, wherever they stand.
    assert found.endswith("/mnt/models/a$$$$(HOME)b.edge")
    (service,) = yaml.safe_load(emitted(cli, *given, "compose"))["services"].values()
    assert all("$" not in v["target"].replace("$$", "") for v in service["volumes"])


@pytest.mark.parametrize("kind", ["systemd", "compose", "kserve"])
@pytest.mark.parametrize("variable", emit.DEMANDS)
def test_what_the_environment_demands_is_not_dropped(
    cli: Any, files: Path, kind: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit without keys let everybody in; one without trusted keys opens any bundle."""
    value = {"EDGEINFER_NATIVE": "deny", "EDGEINFER_ALLOW": "fp16"}.get(variable, KEY)
    monkeypatch.setenv(variable, value)
    given = [files / "net.edge", "--keys", files / "keys"]
    given = [*given[:1], "--insecure"] if "KEYS" in variable and "SERVE" in variable else given
    refused = cli("serve", *given, "--emit", kind)
    assert refused.code == 2
    name, flag = emit.DEMANDS[variable]
    assert f"what {variable} demands stays here; give {flag}" in refused.err
    monkeypatch.setenv("EDGEINFER_NATIVE", "auto")
    file, word = files / "keys", {"native": ["--no-native"], "allow": ["--allow", "fp16"]}
    said = word.get(name, [flag.split()[0], file])
    text = emitted(cli, *given, *said, "--emit", kind)
    assert f"--{name}" in text or f"--no-{name}" in text


def test_every_variable_of_an_option_is_known_here() -> None:
    """Whoever adds one decides what a file says of it."""
    options = (*options_of(Opening).values(), options_of(SessionOptions)["allow"])
    named = {v for each in options for v in re.findall(r"EDGEINFER_[A-Z_]+", each.text)}
    assert named == {*emit.DEMANDS, *emit.SECRETS} - {"EDGEINFER_SERVE_KEYS"}


@pytest.mark.parametrize("kind", ["systemd", "compose", "kserve"])
def test_keys_that_decrypt_are_wanted_there(
    cli: Any, files: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_FILE_ENV, "/a/key")
    text = emitted(cli, files / "net.edge", "--keys", files / "keys", "--emit", kind)
    assert f"# Wanted in its environment: {KEY_FILE_ENV}" in text


def test_a_device_writes_units_alone(
    cli: Any, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emit, "package", lambda: RUNTIME)
    given = "serve", files / "net.edge", "--keys", files / "keys", "--emit"
    assert cli(*given, "systemd").code == 0
    refused = cli(*given, "compose")
    assert refused.code == 2
    assert "edgeinfer-runtime writes units of systemd" in refused.err

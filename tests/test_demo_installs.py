"""The demos' install scripts, with programs that play apt, pip, sudo and systemd."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the scripts are for Linux")

ROOT = Path(__file__).resolve().parent.parent
BUNDLES = tuple(f"{letter}.edge" for letter in "abcdefgh")
DEMOS = {
    "pi_camera": (BUNDLES[:1], "edgeinfer-camera"),
    "pi_listen": (BUNDLES[:4], "edgeinfer-listen"),
    "pi_assistant": (BUNDLES, "edgeinfer-assistant"),
    "jetson_streams": ((BUNDLES[0], "rtsp://1", "rtsp://2"), "edgeinfer-streams"),
    "document_ocr": ((*BUNDLES[:3], "{inbox}"), "edgeinfer-ocr"),
}

LOGGED = '#!/bin/bash\necho "$(basename "$0") $*" >> "$LOG"\n'
HERE = shlex.quote(sys.executable)
PYTHON = f"""#!/bin/bash
if [ "$1" = -m ]; then
    echo "venv ${{*:3}}" >> "$LOG"
    mkdir -p "${{@: -1}}/bin"
    cp "$TOOLS/systemctl" "${{@: -1}}/bin/pip"
    cp "$TOOLS/systemctl" "${{@: -1}}/bin/edgeinfer"
    ln -sf {HERE} "${{@: -1}}/bin/python"
else
    exec {HERE} "$@"
fi
"""


class Device:
    """A made-up one: the script with its folders moved, and tools that write down what they do."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.root = name, folder
        self.home, self.log = folder / "opt/edgeinfer", folder / "log"
        shutil.copytree(ROOT / "examples" / name, folder / "repo/examples" / name)
        self.script = folder / "repo/examples" / name / "install.sh"
        text = self.script.read_text()
        text = text.replace("/opt/edgeinfer", str(self.home)).replace(" /etc/", f" {folder}/etc/")
        self.script.write_text(text)
        for place in ("etc/systemd/system", "etc/default", "tools", "opt"):
            (folder / place).mkdir(parents=True)
        (folder / "etc/nv_tegra_release").write_text("# R38 (release), REVISION: 2.0\n")
        for tool in ("apt-get", "systemctl"):
            self.tool(tool, LOGGED)
        self.tool("sudo", '#!/bin/bash\nexec "$@"\n')
        self.tool("uname", "#!/bin/bash\necho aarch64\n")
        self.tool("hostname", "#!/bin/bash\necho pi\n")
        self.tool("python3", PYTHON)

    def tool(self, name: str, text: str) -> None:
        path = self.root / "tools" / name
        path.write_text(text)
        path.chmod(0o755)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        tools = str(self.root / "tools")
        variables = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "TOOLS": tools,
            "LOG": str(self.log),
            "USER": "pi" if os.geteuid() else "root",
        }
        return subprocess.run(
            ["bash", self.script, *arguments],
            cwd=self.root,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Device:
    return Device(request.param, tmp_path)


@pytest.mark.parametrize("device", DEMOS, indirect=True)
def test_what_it_installs_is_there(device: Device) -> None:
    done = device.run()
    assert done.returncode == 0, done.stderr
    log = device.log.read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (wanted,) = re.findall(rf"pip install .*{device.root}/repo\[(.*?)\]", log)
    assert set(wanted.split(",")) <= set(extras["optional-dependencies"])
    assert "apt-get install -y" in log
    assert "edgeinfer doctor\n" in log
    assert "systemctl" not in log
    (script,) = device.home.glob("*.py")
    assert (ROOT / "examples" / device.name / script.name).read_text() == script.read_text()


@pytest.mark.parametrize("device", DEMOS, indirect=True)
def test_the_service_finds_what_it_names(device: Device) -> None:
    arguments, service = DEMOS[device.name]
    for bundle in BUNDLES:
        (device.root / bundle).write_text(bundle)
    inbox = device.root / "in box"
    done = device.run(*(a.format(inbox=inbox) for a in arguments))
    assert done.returncode == 0, done.stderr
    unit = (device.root / f"etc/systemd/system/{service}.service").read_text()
    assert "@" not in unit
    start = re.findall(r"(?m)^ExecStart=/opt/edgeinfer/venv/bin/python (.*)$", unit)
    named = [n for n in start[0].split() if n.endswith((".edge", ".py"))]
    assert len(named) > 1
    for name in named:
        assert (device.home / name).is_file(), name
    assert f"systemctl enable --now {service}.service\n" in device.log.read_text()
    if device.name == "jetson_streams":
        assert (device.root / "etc/default/edgeinfer-streams").read_text() == (
            "SOURCES=rtsp://1 rtsp://2\n"
        )
        assert f"edgeinfer build {device.home}/detector.edge\n" in device.log.read_text()
    if device.name == "document_ocr":
        assert inbox.is_dir()
        assert f'--inbox "{inbox}" --overlay\n' in unit
        assert f'ReadWritePaths="{inbox}"\n' in unit
    _verify(unit, device)


def _verify(unit: str, device: Device) -> None:
    """Ask systemd itself, where it is, whether it understands the unit."""
    if shutil.which("systemd-analyze") is None:
        return
    path = device.root / "edgeinfer-x.service"
    path.write_text(unit.replace("/opt/edgeinfer", str(device.home)).replace("User=pi\n", ""))
    done = subprocess.run(
        ["systemd-analyze", "verify", path], capture_output=True, text=True, check=False
    )
    told = [line for line in done.stderr.splitlines() if "edgeinfer-x" in line]
    assert told == []


@pytest.mark.parametrize("device", ["document_ocr"], indirect=True)
def test_a_folder_that_systemd_cannot_be_told_of(device: Device) -> None:
    for bundle in BUNDLES[:3]:
        (device.root / bundle).touch()
    done = device.run(*BUNDLES[:3], str(device.root / "100% scans"))
    assert done.returncode == 2
    assert "install.sh: systemd cannot be told of a folder named like that: " in done.stderr
    assert device.run(*BUNDLES[:3], "scans").returncode == 0
    unit = (device.root / "etc/systemd/system/edgeinfer-ocr.service").read_text()
    assert f'ReadWritePaths="{device.root}/scans"\n' in unit


@pytest.mark.parametrize("device", ["pi_camera", "pi_listen"], indirect=True)
def test_a_pc_is_no_pi(device: Device) -> None:
    device.tool("uname", "#!/bin/bash\necho x86_64\n")
    done = device.run()
    assert done.returncode == 1
    assert done.stderr == "install.sh: expected a 64-bit Arm system, this is x86_64\n"
    assert not device.log.exists()


@pytest.mark.parametrize("device", ["jetson_streams"], indirect=True)
def test_jetpack_6_gets_another_python(device: Device) -> None:
    device.tool("python3", "#!/bin/bash\nexit 1\n")
    device.tool("python3.11", PYTHON)
    assert device.run().returncode == 0
    log = device.log.read_text()
    assert "apt-get install -y python3.11 python3.11-venv\n" in log
    assert "[onnxruntime,media,camera]" in log
    (device.root / "etc/nv_tegra_release").unlink()
    done = device.run()
    assert done.returncode == 1
    assert "expected a Jetson" in done.stderr


@pytest.mark.parametrize("device", ["pi_listen", "document_ocr"], indirect=True)
def test_a_wrong_number_of_bundles_is_told(device: Device) -> None:
    (device.root / "a.edge").touch()
    done = device.run("a.edge")
    assert done.returncode == 2
    assert "received 1" in done.stderr

"""Where a device is, and how ssh is called."""

from __future__ import annotations

import pytest

from edgeinfer.errors import UsageError
from edgeinfer.remote import ssh
from edgeinfer.remote.ssh import SshAddress


@pytest.mark.parametrize(
    ("device", "place"),
    [
        ("ssh://board", SshAddress("board")),
        ("ssh://pi@Board.local:2222", SshAddress("pi@Board.local", 2222)),
        (
            "ssh://pi@10.0.0.7/home/pi/v/bin/python",
            SshAddress("pi@10.0.0.7", None, "/home/pi/v/bin/python"),
        ),
        ("ssh://pi@[fe80::1]:22", SshAddress("pi@fe80::1", 22)),
    ],
)
def test_places(device: str, place: SshAddress) -> None:
    assert ssh.place(device) == place


@pytest.mark.parametrize(
    "device",
    [
        "ssh://",
        "ssh://pi@",
        "ssh://board:none",
        "ssh://-oProxyCommand=x",
        "ssh://-l@board",
        "ssh://pi:word@board",
        "ssh://board?x",
        "ssh://a b",
        "ssh://[h]",
        "ssh://[::1",
        "ssh://x\u2100y",
        "ssh://board:99999999",
        "ssh://x`id`[::1]:22",
        "ssh://[::1]x$(id):22",
        "ssh://u$(id)@board",
    ],
)
def test_what_is_no_place_is_refused(device: str) -> None:
    with pytest.raises(UsageError, match="device 'ssh://"):
        ssh.place(device)

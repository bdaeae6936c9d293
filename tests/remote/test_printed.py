"""What a device prints."""

from __future__ import annotations

import subprocess

import pytest

from edgeinfer.remote import printed
from edgeinfer.remote.printed import Printed


def test_all_is_read_and_the_first_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printed, "MOST_SAID", 1 << 20)
    for size, ends in ((3, False), (1 << 20, False), ((1 << 20) + 1, True)):
        command = f"head -c {size} /dev/zero; exec sleep {600 if ends else 0}"
        with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE) as process:
            found = Printed(process, process.stdout)
            assert (process.wait(60) != 0) == ends
            found.ended()
        assert found.is_too_much == ends
        assert found.first == bytes(min(size, 1 << 16))
        assert (found.last == "it printed more than 1048576 bytes") == ends

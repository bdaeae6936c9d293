"""Mixed requests for long: every reply belongs to its request, memory and descriptors stay.

``EDGEINFER_SOAK`` is the count of requests, 20,000 where it is not set; the whole of it is
``python -m benchmarks.serving_soak``: two million requests or half an hour, whichever is longer.
"""

from __future__ import annotations

import argparse
import os

import pytest

from benchmarks.serving_soak import WrongReplyError, check, soak

REQUESTS = int(os.environ.get("EDGEINFER_SOAK", "20000"))

pytestmark = pytest.mark.slow


@pytest.mark.timeout(4 * 3600)
@pytest.mark.skipif(os.name != "posix", reason="descriptors are counted on POSIX")
def test_nothing_is_mixed_up_and_nothing_grows() -> None:
    given = argparse.Namespace(count=REQUESTS, minutes=0.3, clients=4, kill_s=3.0, chat=None)
    found = soak(given)
    assert found.problem == ""
    assert found.count >= REQUESTS
    assert found.killed > 0
    assert found.growth_mb < 1.0, found.memory_mb
    assert found.more_files <= 4, found.files


def test_a_wrong_reply_is_one() -> None:
    check(True)
    with pytest.raises(WrongReplyError):
        check(False, "told")

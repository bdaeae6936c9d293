"""``edgeinfer sign`` and ``verify --trusted``."""

import json
from pathlib import Path
from typing import Any


def test_make_keys_sign_and_verify(cli: Any, bundle: Path, tmp_path: Path) -> None:
    key, public = tmp_path / "key.pem", tmp_path / "key.pub"
    made = json.loads(cli("sign", "--key", key, "--new-key", public, "--json").out)["key"]
    refused = cli("verify", bundle, "--trusted", public)
    assert refused.code == 1
    assert "is not signed, and a signature is required" in refused.err
    assert cli("sign", bundle, "--key", key).out == f"{bundle}: signed by key {made}\n"
    result = cli("verify", bundle, "--trusted", public)
    assert result.code == 0
    assert f"signed by key {made}\n" in result.out
    assert json.loads(cli("verify", bundle, "--trusted", public, "--json").out)["signed_by"] == made
    assert json.loads(cli("verify", bundle, "--json").out)["signed_by"] is None


def test_nothing_to_sign(cli: Any, tmp_path: Path) -> None:
    result = cli("sign", "--key", tmp_path / "key.pem")
    assert (result.code, result.out) == (2, "")
    assert "give a BUNDLE to sign, or --new-key" in result.err

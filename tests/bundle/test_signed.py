"""What may be asked of a signed bundle beyond its signature."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.signer import new_keys, sign
from edgeinfer.bundle.signing import parse, verified
from edgeinfer.bundle.writer import put_signatures
from edgeinfer.cli.failures import guarded
from edgeinfer.cli.group import edgeinfer as group
from edgeinfer.errors import BundleError, OutputError, SignatureError, UsageError

pytest.importorskip("cryptography")

Sign = Callable[..., str]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEINFER_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def keys(tmp_path: Path) -> list[str]:
    for name in "ab":
        new_keys(tmp_path / name, tmp_path / f"{name}.pub")
    return [str(tmp_path / "a.pub"), str(tmp_path / "b.pub")]


@pytest.fixture
def signed(zipped: Path, tmp_path: Path, keys: list[str]) -> Sign:
    def by(name: str, counter: int | None = None, time: int | None = None) -> str:
        with Bundle.open(zipped) as bundle:
            content, identity = sign(
                bundle.manifest_bytes(),
                tmp_path / name,
                bundle.signatures(),
                counter=counter,
                time=time,
            )
        put_signatures(zipped, content)
        return identity

    return by


def test_another_name_is_refused(zipped: Path, signed: Sign, keys: list[str]) -> None:
    signed("a")
    Bundle.open(zipped, trusted=keys, expect_name="small").close()
    Bundle.open(zipped, expect_name="small").close()
    with pytest.raises(SignatureError, match="expected the model 'door', received 'small'"):
        Bundle.open(zipped, trusted=keys, expect_name="door")


def test_a_counter_may_not_fall(zipped: Path, signed: Sign, keys: list[str]) -> None:
    for counter in (3, 3, 7):
        signed("a", counter)
        Bundle.open(zipped, trusted=keys, protect_rollback=True).close()
    signed("a", 6)
    with pytest.raises(SignatureError, match="has counter 6, and 7 was seen here"):
        Bundle.open(zipped, trusted=keys, protect_rollback=True)
    # Who does not ask is not protected, and sees what it says.
    with Bundle.open(zipped, trusted=keys) as bundle:
        assert [s.counter for s in bundle.signatures_by] == [6]
    signed("a")
    with pytest.raises(SignatureError, match="has no counter: `edgeinfer sign --counter`"):
        Bundle.open(zipped, trusted=keys, protect_rollback=True)


@pytest.mark.parametrize("verify", [True, "later", False])
def test_a_damaged_update_leaves_the_one_before(
    zipped: Path, signed: Sign, keys: list[str], tmp_path: Path, verify: Any
) -> None:
    """Its counter was kept before its files were compared, and the good one before it refused."""
    signed("a", 1)
    good = zipped.read_bytes()
    signed("a", 2)
    with zipfile.ZipFile(zipped) as opened:
        members = {name: opened.read(name) for name in opened.namelist()}
    name = next(n for n in members if n.startswith("variants/"))
    members[name] = bytes([members[name][0] ^ 1]) + members[name][1:]
    damaged = tmp_path / "damaged.edge"
    with zipfile.ZipFile(damaged, "w") as written:
        for each, content in members.items():
            written.writestr(each, content)

    def used(path: Path) -> None:
        with Bundle.open(path, trusted=keys, protect_rollback=True, verify=verify) as bundle:
            for variant in bundle.manifest.variants:
                bundle.paths(variant)
            if verify == "later":
                bundle.check()
            bundle.keep_counters()

    with pytest.raises(BundleError):
        used(damaged)
    old, new = tmp_path / "old.edge", zipped
    old.write_bytes(good)
    used(old)
    used(new)
    with pytest.raises(SignatureError, match="has counter 1, and 2 was seen here"):
        used(old)


def test_a_counter_is_of_the_keys_that_are_trusted(
    zipped: Path, signed: Sign, keys: list[str], tmp_path: Path
) -> None:
    signed("a", 7)
    Bundle.open(zipped, trusted=keys, protect_rollback=True).close()
    new_keys(tmp_path / "c", tmp_path / "c.pub")
    signed("c", 1)
    with Bundle.open(zipped, trusted=[tmp_path / "c.pub"], protect_rollback=True) as bundle:
        assert [s.counter for s in bundle.signatures_by] == [1]


@pytest.mark.parametrize("left", ["ab", "b", "a"])
def test_a_signature_that_is_taken_out_brings_no_older_one_back(
    zipped: Path, signed: Sign, keys: list[str], left: str
) -> None:
    """Signatures are not signed themselves; one by a key without a history proves nothing."""
    signed("a", 2)
    Bundle.open(zipped, trusted=keys, protect_rollback=True).close()
    signed("a", 1)
    signed("b", 1)
    with Bundle.open(zipped) as bundle:
        content = json.loads(bundle.signatures() or b"")
    first, second = content["signatures"]
    content["signatures"] = {"ab": [first, second], "a": [first], "b": [second]}[left]
    put_signatures(zipped, json.dumps(content).encode())
    with pytest.raises(SignatureError, match="has counter 1, and 2 was seen here"):
        Bundle.open(zipped, trusted=keys, protect_rollback=True)


def test_a_new_key_goes_on_where_the_old_one_was(
    zipped: Path, signed: Sign, keys: list[str]
) -> None:
    signed("a", 5)
    Bundle.open(zipped, trusted=keys, protect_rollback=True).close()
    signed("a", 6)
    signed("b", 2)
    Bundle.open(zipped, trusted=keys, protect_rollback=True).close()
    with Bundle.open(zipped) as bundle:
        content = json.loads(bundle.signatures() or b"")
    signed("b", 6)
    with Bundle.open(zipped, trusted=keys, protect_rollback=True) as bundle:
        assert sorted(s.counter or 0 for s in bundle.signatures_by) == [6, 6]
    put_signatures(zipped, json.dumps(content).encode())
    with pytest.raises(SignatureError, match="has counter 2, and 6 was seen here"):
        Bundle.open(zipped, trusted=keys, protect_rollback=True)


def test_what_cannot_be_remembered_is_not_protected(
    zipped: Path, signed: Sign, keys: list[str], state: Path
) -> None:
    signed("a", 1)
    state.write_bytes(b"")
    with pytest.raises(OutputError, match="counters cannot be kept"):
        Bundle.open(zipped, trusted=keys, protect_rollback=True)


@pytest.mark.parametrize("content", [b"", b"7\n", b"-1", b"seven", b"1" * 5000, b"\xff"])
def test_a_counter_that_is_none_is_not_written_over(
    zipped: Path, signed: Sign, keys: list[str], state: Path, content: bytes
) -> None:
    signed("a", 7)
    Bundle.open(zipped, trusted=keys, protect_rollback=True).close()
    (kept,) = (p for p in (state / "counters").iterdir() if p.name != "lock")
    kept.write_bytes(content)
    with pytest.raises(OutputError, match=f"{kept.name}: counters cannot be kept: it h"):
        Bundle.open(zipped, trusted=keys, protect_rollback=True)
    assert kept.read_bytes() == content


def test_an_altered_claim_breaks_the_signature(zipped: Path, signed: Sign, keys: list[str]) -> None:
    signed("a", 1, 1_700_000_000)
    with Bundle.open(zipped) as bundle:
        content = json.loads(bundle.signatures() or b"")
        manifest = bundle.manifest_bytes()
    (entry,) = content["signatures"]
    assert entry["claims"] == {"counter": 1, "time": 1_700_000_000}
    paths = [Path(key) for key in keys]
    assert verified(manifest, json.dumps(content).encode(), paths)[0].time == 1_700_000_000
    for claims in ({"counter": 2, "time": 1_700_000_000}, {"counter": 1}, {}):
        entry["claims"] = claims
        with pytest.raises(SignatureError, match="is not of it"):
            verified(manifest, json.dumps(content).encode(), paths)


@pytest.mark.parametrize("claims", [{"counter": -1}, {"counter": True}, {"more": 1}, [], 5])
def test_claims_are_read_strictly(zipped: Path, signed: Sign, claims: object) -> None:
    signed("a", 1)
    with Bundle.open(zipped) as bundle:
        content = json.loads(bundle.signatures() or b"")
    content["signatures"][0]["claims"] = claims
    with pytest.raises(SignatureError, match="malformed"):
        parse(json.dumps(content).encode())


def test_several_must_have_signed(zipped: Path, signed: Sign, keys: list[str]) -> None:
    first = signed("a")
    with pytest.raises(SignatureError, match=f"is signed by {first}, expected 2 of "):
        Bundle.open(zipped, trusted=keys, signers=2)
    second = signed("b")
    with Bundle.open(zipped, trusted=keys, signers=2) as bundle:
        assert {s.key for s in bundle.signatures_by} == {first, second}
    with pytest.raises(SignatureError, match="a signature is required, but no key is trusted"):
        Bundle.open(zipped, signers=2)
    # One key that is named twice is one signer.
    with pytest.raises(SignatureError, match="expected 2 of"):
        Bundle.open(zipped, trusted=[keys[0], keys[0]], signers=2)


def test_what_is_revoked_is_refused(
    zipped: Path, signed: Sign, keys: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = signed("a")
    with Bundle.open(zipped, trusted=keys) as bundle:
        digest = bundle.full_digest
    listed = tmp_path / "revoked"
    listed.write_text(f"# withdrawn\n{digest}  # of May\n\n")
    with pytest.raises(SignatureError, match=f"is revoked .digest {digest[:16]}"):
        Bundle.open(zipped, revoked=listed)
    monkeypatch.setenv("EDGEINFER_REVOKED", str(listed))
    with pytest.raises(SignatureError, match="is revoked"):
        Bundle.open(zipped, trusted=keys)
    listed.write_text(identity.upper())
    with pytest.raises(SignatureError, match="expected one of"):
        Bundle.open(zipped, trusted=keys)
    signed("b")
    with Bundle.open(zipped, trusted=keys) as bundle:
        assert bundle.signed_by != identity
    listed.write_text("nonsense")
    with pytest.raises(UsageError, match="line 1: expected a bundle's digest"):
        Bundle.open(zipped)
    monkeypatch.setenv("EDGEINFER_REVOKED", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="the list of what is revoked cannot be read"):
        Bundle.open(zipped)


def test_the_command_line_signs_and_asks(
    zipped: Path, tmp_path: Path, keys: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    key = str(tmp_path / "a")
    assert guarded(group, ["sign", str(zipped), "--key", key, "--counter", "5"]) == 0
    asked = ["inspect", str(zipped), "--trusted", keys[0], "--protect-rollback", "--json"]
    capsys.readouterr()
    assert guarded(group, asked) == 0
    (said,) = json.loads(capsys.readouterr().out)["trust"]["signatures"]
    assert said["counter"] == 5
    assert guarded(group, ["sign", str(zipped), "--key", key, "--counter", "4"]) == 0
    assert guarded(group, asked) == 1
    assert guarded(group, ["inspect", str(zipped), "--expect-name", "other"]) == 1

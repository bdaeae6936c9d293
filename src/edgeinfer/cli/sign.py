"""``edgeinfer sign``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from edgeinfer.cli.output import Output, output_options
from edgeinfer.errors import UsageError


@click.command()
@click.argument("bundle", required=False)
@click.option(
    "-k", "--key", required=True, type=click.Path(path_type=Path), help="Private key, a PEM file."
)
@click.option(
    "--new-key",
    type=click.Path(path_type=Path),
    metavar="PUBLIC",
    help="First make the pair: the private key in KEY, the public one in PUBLIC.",
)
@click.option(
    "--counter",
    type=click.IntRange(0),
    help="Counter of this version; devices may refuse lower ones afterwards.",
)
@output_options
def sign(
    bundle: str | None, key: Path, new_key: Path | None, counter: int | None, out: Output
) -> None:
    """Sign BUNDLE with an Ed25519 key.

    The signature is over the manifest, which holds the hash of every file. Signatures by other keys
    stay. Devices check it with `--trusted`, with `edgeinfer.load(..., trusted=[...])`, or always,
    where EDGEINFER_TRUSTED_KEYS is set.
    """
    from edgeinfer.bundle.archive import Bundle
    from edgeinfer.bundle.signer import new_keys
    from edgeinfer.bundle.signer import sign as signed
    from edgeinfer.bundle.writer import put_signatures

    if bundle is None and new_key is None:
        raise UsageError("give a BUNDLE to sign, or --new-key to make a pair of keys")
    if bundle is None:
        identity = new_keys(key, new_key) if new_key is not None else ""
        out.result({"key": identity}, lambda: [f"key {identity}: {key}, {new_key}"])
        return
    with Bundle.open(bundle, trusted=()) as opened:
        if opened.sealed_by:
            raise UsageError(f"{bundle}: is encrypted; sign it first, signatures are inside")
        # Not sooner: keys are never replaced, so a pair made for nothing would stand in the way.
        if new_key is not None:
            new_keys(key, new_key)
        content, identity = signed(
            opened.manifest_bytes(),
            key,
            opened.signatures(),
            counter=counter,
            time=None if counter is None else int(time.time()),
        )
    put_signatures(Path(bundle), content)
    data = {"bundle": bundle, "key": identity}
    out.result(data, lambda: [f"{bundle}: signed by key {identity}"])

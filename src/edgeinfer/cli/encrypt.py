"""``edgeinfer encrypt``."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Any

import click

from edgeinfer.cli.output import Output, output_options
from edgeinfer.cli.trust import trust_options


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("-k", "--key", type=click.Path(path_type=Path), help="File with the key.")
@click.option("--new-key", is_flag=True, help="First make the key and write it to that file.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Default NAME.enc.edge next to it."
)
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@trust_options(runs=False)
@output_options
def encrypt(
    bundle: Path,
    key: Path | None,
    new_key: bool,
    output: Path | None,
    overwrite: bool,
    trust: dict[str, Any],
    out: Output,
) -> None:
    """Encrypt BUNDLE for a device whose storage others can read.

    AES-256-GCM, in chunks. The key is 64 hexadecimal digits in a file (`--key`, or the file that
    EDGEINFER_BUNDLE_KEY_FILE names) or in EDGEINFER_BUNDLE_KEY; a device finds it in the same way,
    or by `edgeinfer.load(..., key=FILE)`. Sign first: signatures are inside. A device decrypts in
    memory and writes nothing of the bundle to a disk.
    """
    from edgeinfer.bundle import sealer
    from edgeinfer.bundle.sealing import key_from
    from edgeinfer.errors import UsageError

    if new_key and key is None:
        raise UsageError("--new-key writes the key to the file that --key names")
    secret = sealer.new_key(key) if new_key and key is not None else key_from(key)
    target = output or bundle.with_name(f"{bundle.name.removesuffix('.edge')}.enc.edge")
    try:
        sealer.seal(bundle, target, secret, overwrite=overwrite, trust=trust)
    except BaseException:
        # Nothing is encrypted with it, and it would stand in the way of the next attempt.
        if new_key and key is not None:
            key.unlink(missing_ok=True)
        raise
    warnings = []
    if key is not None and sealer.is_exposed(key):
        warnings.append(f"{key} can be read by others than its owner: chmod 600 {quote(str(key))}")
    data = {"bundle": str(bundle), "output": str(target), "key": secret.id, "warnings": warnings}
    out.result(data, lambda: [f"{target}: encrypted with key {secret.id}", *warnings])

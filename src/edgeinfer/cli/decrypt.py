"""``edgeinfer decrypt``."""

from __future__ import annotations

from pathlib import Path

import click

from edgeinfer.cli.output import Output, output_options


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("-k", "--key", type=click.Path(path_type=Path), help="File with the key.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="The plain bundle."
)
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@output_options
def decrypt(bundle: Path, key: Path | None, output: Path, overwrite: bool, out: Output) -> None:
    """Decrypt BUNDLE.

    Not needed for running it: `run`, `bench`, `verify` and `edgeinfer.load` decrypt in memory.
    """
    from edgeinfer.bundle.sealer import unseal
    from edgeinfer.bundle.sealing import key_from

    secret = key_from(key)
    unseal(bundle, output, secret, overwrite=overwrite)
    data = {"bundle": str(bundle), "output": str(output), "key": secret.id}
    out.result(data, lambda: [f"{output}: decrypted with key {secret.id}"])

"""``edgeinfer completion``."""

from __future__ import annotations

import click

from edgeinfer.cli import COMPLETE


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes a shell complete commands.

    \b
    bash: eval "$(edgeinfer completion bash)"     in ~/.bashrc
    zsh:  eval "$(edgeinfer completion zsh)"      in ~/.zshrc
    fish: edgeinfer completion fish > ~/.config/fish/completions/edgeinfer.fish
    """  # noqa: D301 - click wants the control character itself
    from click.shell_completion import get_completion_class

    from edgeinfer.cli.group import edgeinfer

    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"no completion for {shell}")
    click.echo(made(edgeinfer, {}, "edgeinfer", COMPLETE).source())

"""`aj completion`: the script that teaches a shell aj's words."""

from __future__ import annotations

import click

from aj.client.commands import Command
from aj.client.console import Answer


@click.command(
    cls=Command,
    examples=(
        'bash: eval "$(aj completion bash)"                              in ~/.bashrc',
        'zsh:  eval "$(aj completion zsh)"                               in ~/.zshrc',
        "fish: aj completion fish > ~/.config/fish/completions/aj.fish",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> Answer:
    """Print a completion script. Commands, options and template names complete."""
    from click.shell_completion import get_completion_class

    from aj.client.main import aj

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(aj, {}, "aj", "_AJ_COMPLETE").source()
    return Answer({"kind": "completion", "shell": shell, "script": script}, lambda out: out.line(script.rstrip("\n")))

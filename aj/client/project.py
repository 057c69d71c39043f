"""`aj init`, `aj config` and `aj completion`: what a person sets up once."""

from __future__ import annotations

from collections.abc import Mapping

import click

from aj.client.call import Call
from aj.client.commands import Command, Group, UsageError
from aj.client.console import Answer, Console
from aj.client.options import complete_template
from aj.client.show import show_fields
from aj.shared.config import change_config, read_config
from aj.shared.errors import ChildError, NotFoundError
from aj.shared.jsonio import Json, write_file
from aj.shared.paths import shipped

EDITOR_SCHEMA = "template.schema.json"


_VERSION_SECONDS = 60


@click.command(cls=Command)
@click.argument("what", required=False, metavar="[amlt]", type=click.Choice(["amlt"]))
@click.pass_obj
def init(call: Call, what: str | None) -> Answer:
    """Write a first template, an ignore file and the schema that editors use, under AJ_HOME.

    `aj init amlt` looks for amlt too, and writes a template for it. What exists is never changed. It asks nothing and
    needs no network.
    """
    home = call.home
    name = what or "local"
    texts = shipped("backends") / "init"
    files = {
        home.templates / f"{name}.yaml": (texts / f"{name}.yaml").read_bytes(),
        home.root / ".gitignore": (texts / "gitignore").read_bytes(),
        home.root / EDITOR_SCHEMA: editor_schema(),
    }
    written = [path for path in files if not path.exists()]
    for path in written:
        write_file(path, files[path], mode=0o644)
    document = {
        "kind": "command_result",
        "action": "init",
        "status": "written" if written else "same",
        "written": [str(path) for path in written],
        "kept": [str(path) for path in files if path not in written],
    }
    if what:
        call.console.say(f"found {_amlt_version(call)}")

    def show(out: Console) -> None:
        for path in written:
            out.line(f"wrote {path}")
        if not written:
            out.say(f"nothing to do: {home.root} has it all")
        out.say(f"next: `aj run {'--amlt ' if what else ''}-t {name} python3 --version`")

    return Answer(document, show)


def _amlt_version(call: Call) -> str:
    import shutil
    import subprocess

    from aj.shared.job.amlt import MISSING

    program = shutil.which("amlt", path=call.env.get("PATH"))
    if program is None:
        raise ChildError("`amlt` is not on PATH", where="aj init amlt", hint=MISSING)
    try:
        ran = subprocess.run(
            [program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_VERSION_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ChildError(f"`{program} --version` does not work: {error}", where="aj init amlt", hint=MISSING) from error
    return f"{ran.stdout.decode('utf-8', 'replace').strip()} at {program}"


@click.group(cls=Group)
def config() -> None:
    """Show and change the project's configuration, `AJ_HOME/aj_config.json`."""


@config.command()
@click.pass_obj
def show(call: Call) -> Answer:
    """Show the configuration and the folders in use."""
    from aj.shared.paths import cache_home, runtime_folder

    found = read_config(call.home)
    document: dict[str, Json] = {
        "kind": "config",
        "home": str(call.home.root),
        "cache": str(cache_home(call.env)),
        "runtime": str(runtime_folder(call.env)),
        "config": found,
    }
    shown = {**{key: value for key, value in document.items() if key != "config"}, **found}
    return Answer(document, lambda out: show_fields(out, shown))


_unset = click.option("--unset", is_flag=True, help="Forget what was set.")


@config.command()
@click.argument("name", required=False, shell_complete=complete_template)
@_unset
@click.pass_obj
def template(call: Call, name: str | None, unset: bool) -> Answer:
    """Set the template that commands use when `-t` is left out."""
    from aj.shared.template.template import template_names

    _check_given(name, unset, "template")
    if name is not None and name not in (known := template_names(call.home)):
        hint = f"there are {', '.join(f'`{each}`' for each in known)}" if known else "`aj init` writes a first one"
        raise NotFoundError(f"no template `{name}`", where=str(call.home.templates), hint=hint)
    said = f"commands use template `{name}` unless `-t` says otherwise" if name else "no template is set"
    return _changed(call, {"template": name}, said)


@config.command()
@click.argument("value", required=False, type=click.Choice(["warn", "error"]))
@_unset
@click.pass_obj
def credential_files(call: Call, value: str | None, unset: bool) -> Answer:
    """Set whether files that look like credentials are named in a warning, as at first, or stop a run."""
    _check_given(value, unset, "credential-files")
    said = "stop a run" if value == "error" else "are named in a warning"
    return _changed(call, {"credential_files": value}, f"files that look like credentials {said}")


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> Answer:
    """Print a completion script. Commands, options and template names complete."""
    from click.shell_completion import get_completion_class

    from aj.client.main import aj

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(aj, {}, "aj", "_AJ_COMPLETE").source()
    return Answer({"kind": "completion", "shell": shell, "script": script}, lambda out: out.line(script.rstrip("\n")))


def _check_given(value: str | None, unset: bool, command: str) -> None:
    if (value is None) != unset:
        hint = "`aj config show` shows what is set"
        raise UsageError("give either a value or `--unset`", where=f"aj config {command}", hint=hint)


def _changed(call: Call, changes: Mapping[str, Json], said: str) -> Answer:
    document = {"kind": "config", "home": str(call.home.root), "config": change_config(call.home, changes)}
    return Answer(document, lambda out: out.say(said))


def editor_schema() -> bytes:
    """What `init` puts beside the templates, so that their modeline works in every clone."""
    return (shipped("schemas") / EDITOR_SCHEMA).read_bytes()

"""`aj_config.json`: what a project has configured once for all of its templates."""

from __future__ import annotations

from collections.abc import Mapping

from aj.shared.errors import ConfigError
from aj.shared.jsonio import Json, canonical, read_json, write_file
from aj.shared.paths import Home


def read_config(home: Home) -> dict[str, Json]:
    """The configuration, `{}` when there is none; `ConfigError` when it is no JSON object or breaks its schema."""
    try:
        document = read_json(home.config)
    except FileNotFoundError:
        return {}
    except NotADirectoryError as error:
        raise ConfigError(
            "AJ_HOME is not a folder", where=str(home.root), hint="move the file away, then `aj init`"
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"not valid JSON: {error}", where=str(home.config), hint="correct it, or remove it"
        ) from error
    name = document.get("template", "") if isinstance(document, dict) else None
    if not isinstance(name, str):
        raise ConfigError(
            "the configuration must be a JSON object, its `template` a text",
            where=str(home.config),
            hint="see `aj schema config`",
        )
    assert isinstance(document, dict)
    return document


def change_config(home: Home, changes: Mapping[str, Json]) -> dict[str, Json]:
    """Write `changes` over the configuration, atomically; None removes a key. The new configuration."""
    document = {key: value for key, value in {**read_config(home), **changes}.items() if value is not None}
    write_file(home.config, canonical(document), mode=0o644)
    return document


def checked_config(home: Home) -> dict[str, Json]:
    """The configuration, every key that aj knows valid by its schema; `ConfigError` otherwise."""
    from aj.shared.schema import violations

    document = read_config(home)
    for violation in violations(document, "config"):
        raise ConfigError(
            violation.message,
            where=f"{home.config}{violation.pointer}",
            hint=violation.hint or "see `aj schema config`",
        )
    return document

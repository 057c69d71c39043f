"""What is registered under a service's name: aj's own objects, then those of packages that are installed beside it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Generic, TypeVar

from aj.shared.errors import ConfigError, UnknownServiceError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Registry(Generic[T]):
    """Objects of one `kind`, imported when they are asked for: `own` has `module:attribute` by service.

    Third parties register theirs as entry points of `group`; they cannot take a name of `own`.
    """

    def __init__(self, kind: type[T], own: Mapping[str, str], group: str, unknown: str) -> None:
        self._kind = kind
        self._own = own
        self._group = group
        self._unknown = unknown
        self.get = cache(self._get)
        """The object of a service; `UnknownServiceError` lists the registered ones, `ConfigError` blames a package."""

    def names(self) -> tuple[str, ...]:
        """All that are registered, sorted."""
        return tuple(sorted({*self._own, *self._foreign}))

    def forget(self) -> None:
        """Look for installed packages again."""
        self.get.cache_clear()
        self.__dict__.pop("_foreign", None)

    def _get(self, service: str) -> T:
        if service in self._own:
            module, _, name = self._own[service].partition(":")
            found: T = getattr(import_module(module), name)
            return found
        if service in self._foreign:
            return self._load(service, self._foreign[service])
        known = ", ".join(f"`{name}`" for name in self.names())
        raise UnknownServiceError(f"{self._unknown} `{service}`", hint=f"the registered services are {known}")

    def _load(self, service: str, point: EntryPoint) -> T:
        where = f"{self._group}: {point.value}"
        try:
            found = point.load()
        except (ImportError, AttributeError) as error:
            message = f"the backend of `{service}` cannot be loaded: {type(error).__name__}: {error}"
            raise ConfigError(message, where=where, hint="install its package again") from error
        if not isinstance(found, self._kind) or getattr(found, "service", service) != service:
            message = f"`{point.value}` is not the {self._kind.__name__.lower()} of the service `{service}`"
            raise ConfigError(message, where=where, hint="its package is at fault")
        return found

    @cached_property
    def _foreign(self) -> Mapping[str, EntryPoint]:
        from importlib.metadata import entry_points

        return {point.name: point for point in entry_points(group=self._group)}

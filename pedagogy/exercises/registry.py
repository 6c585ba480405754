"""What the chapters registered, found by name; a chapter's file is imported when it is needed."""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Any

import pedagogy.exercises

_registered: dict[str, Any] = {}


def register(*items: Any) -> None:
    """Each Exercise or Prediction can now be found by its name.

    Raises: ValueError if another one has that name.
    """
    for item in items:
        known = _registered.setdefault(item.name, item)
        if known is not item and known.chapter != item.chapter:
            raise ValueError(
                f"chapters {known.chapter} and {item.chapter} both register {item.name!r}; "
                "a name belongs to one exercise"
            )
        _registered[item.name] = item  # a reloaded chapter replaces its own


def unregister(*items: Any) -> None:
    """The items are unknown again (for tests that register their own)."""
    for item in items:
        _registered.pop(item.name, None)


def find(name: str, kind: type) -> Any:
    """The registered item of that name and kind.

    Raises: LookupError that lists the names there are.
    """
    if not isinstance(_registered.get(name), kind):
        _import_chapters()
    item = _registered.get(name)
    if not isinstance(item, kind):
        names = ", ".join(one.name for one in all_items(kind)) or "none"
        raise LookupError(f"no {kind.__name__.lower()} is called {name!r}; there are: {names}")
    return item


def all_items(kind: type) -> list[Any]:
    """Every registered item of that kind, by name, from all chapters."""
    _import_chapters()
    return [
        _registered[name] for name in sorted(_registered) if isinstance(_registered[name], kind)
    ]


def _import_chapters() -> None:
    for module in pkgutil.iter_modules(pedagogy.exercises.__path__):
        if re.fullmatch(r"chapter\d\d\w*", module.name):
            importlib.import_module(f"pedagogy.exercises.{module.name}")

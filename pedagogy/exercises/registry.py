"""What the chapters registered, found by name; a chapter's file is imported when it is needed."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
from typing import Any

import pedagogy.exercises

_registered: dict[str, Any] = {}
_OTHER_KIND = {
    "Prediction": "a prediction: there are no hints and no solution, predict({name!r}, answer) "
    "answers it",
    "Exercise": "an exercise: write the function, and check({name}) says what it does",
}


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

    Raises: LookupError that says what else has that name, or suggests the nearest one.
    """
    if not isinstance(name, str):
        raise LookupError(f"the name of {_kind(kind)} in quotes is asked for, not {name!r}")
    if not isinstance(_registered.get(name), kind):
        _import_chapters()
    item = _registered.get(name)
    if isinstance(item, kind):
        return item
    if item is not None:
        what = _OTHER_KIND[type(item).__name__].format(name=name)
        raise LookupError(f"{name!r} is {what}")
    names = [one.name for one in all_items(kind)]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    advice = f"did you mean {near[0]!r}?" if near else "check its spelling"
    raise LookupError(f"no {kind.__name__.lower()} is called {name!r}; {advice}")


def all_items(kind: type) -> list[Any]:
    """Every registered item of that kind, by name, from all chapters."""
    _import_chapters()
    return [
        _registered[name] for name in sorted(_registered) if isinstance(_registered[name], kind)
    ]


def _kind(kind: type) -> str:
    word = kind.__name__.lower()
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def _import_chapters() -> None:
    for module in pkgutil.iter_modules(pedagogy.exercises.__path__):
        if re.fullmatch(r"chapter\d\d\w*", module.name):
            importlib.import_module(f"pedagogy.exercises.{module.name}")

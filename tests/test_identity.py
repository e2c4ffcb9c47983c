"""What holds arrays is the thing itself: comparing its values would compare arrays, which have no one answer."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import fields, is_dataclass

import dropscribe

ARRAY = re.compile(r"\bmx\.array\b|\bndarray\b")


def dataclasses_with_arrays() -> list[type]:
    """Of the whole package, by the annotations of their fields, inherited ones included."""
    found: set[type] = set()
    for module in pkgutil.walk_packages(dropscribe.__path__, "dropscribe."):
        if module.name.endswith("__main__"):
            continue
        for one in vars(importlib.import_module(module.name)).values():
            if isinstance(one, type) and is_dataclass(one) and any(ARRAY.search(str(f.type)) for f in fields(one)):
                found.add(one)
    return sorted(found, key=lambda one: (one.__module__, one.__qualname__))


def test_dataclasses_that_hold_arrays_are_compared_by_identity() -> None:
    """``row in rows`` and ``rows.index(row)`` go through ``__eq__``; a generated one raises, or takes a twin for it."""
    found = dataclasses_with_arrays()
    assert {"Row", "SlotState", "Segment", "Piece"} <= {one.__name__ for one in found}
    assert [one.__qualname__ for one in found if one.__eq__ is not object.__eq__] == []

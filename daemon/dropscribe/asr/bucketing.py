"""Which rows would go through a batched encoder or prefill together: those of equal length, up to a cap."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def bucket_by_length(lengths: Sequence[int], cap: int) -> list[list[int]]:
    """Indices of ``lengths`` in groups of equal length, at most ``cap`` in each.

    Groups stand in the order of their first member, members in their own. Equal lengths need no padding, which is what
    makes a row's features depend on its neighbours.
    """
    if cap < 1:
        raise ValueError("cap must be at least 1")
    groups: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        groups.setdefault(length, []).append(index)
    return [group[at : at + cap] for group in groups.values() for at in range(0, len(group), cap)]

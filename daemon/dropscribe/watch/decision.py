"""What one file means, from what it looks like now and what the job log says of its path."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Literal

    from dropscribe.jobs.records import KnownFile
    from dropscribe.watch.scan import Found

    Decision = Literal["nothing", "queue", "compare"]


def decide(found: Found, row: KnownFile | None, *, replaced: bool = False) -> Decision:
    """What a whole file means. ``row``: the newest of its path; ``replaced``: another file (inode) was there before.

    ``compare``: only the content can tell, and only then is it worth reading.
    """
    if row is None or row.state == "missing":
        return "queue"
    same = (row.size_bytes, row.mtime_ns) == (found.size, found.mtime_ns)
    live = row.state in ("queued", "running")
    if same and (live or not replaced):
        return "nothing"  # whoever reads a live one reads what is there, and notices a change meanwhile
    if row.content_hash is not None and row.size_bytes == found.size:
        return "compare"
    return "nothing" if same else "queue"

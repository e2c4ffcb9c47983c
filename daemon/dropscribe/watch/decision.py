"""What one file means, from what it looks like now and what the job log says of its path."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Literal

    from dropscribe.jobs.records import KnownFile
    from dropscribe.watch.scan import Found

    Decision = Literal["nothing", "queue", "compare"]


def decide(found: Found, row: KnownFile | None, inode: int | None) -> Decision:
    """What a whole file means. ``row``: the newest of its path; ``inode``: the one seen at that path before, if any.

    ``compare``: only the content can tell, and only then is it worth reading.
    """
    if row is None or row.state == "missing":
        return "queue"
    same = (row.size_bytes, row.mtime_ns) == (found.size, found.mtime_ns)
    if same and inode in (None, found.inode):
        return "nothing"
    if row.state in ("queued", "running"):
        return "nothing" if same else "queue"  # whoever reads it reads what is there, and notices a change meanwhile
    if row.content_hash is not None and row.size_bytes == found.size:
        return "compare"
    return "nothing" if same else "queue"

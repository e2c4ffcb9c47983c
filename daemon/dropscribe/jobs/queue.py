"""The write side of the job log. All times are UTC; every method is one short transaction and joins one that is open.

Raises, beside what each method says: ``DatabaseBusy``, ``DatabaseReplaced``, ``DiskFull``, ``OutputUnwritable``.
"""

from __future__ import annotations

from dropscribe.jobs.claims import Claims
from dropscribe.jobs.intake import Intake
from dropscribe.jobs.pruning import Pruning
from dropscribe.jobs.records import Job, KnownFile, Pruned, Recovered, SegmentRow
from dropscribe.jobs.recovery import Recovery
from dropscribe.jobs.replacing import Replacing
from dropscribe.jobs.restoring import Restoring

__all__ = ["Job", "KnownFile", "Pruned", "Queue", "Recovered", "SegmentRow"]


class Queue(Intake, Claims, Recovery, Replacing, Pruning, Restoring):
    """In (``Intake``), claimed and ended (``Claims``), after deaths and by hand (``Recovery``), said anew
    (``Replacing``), old (``Pruning``), and back from a lost log (``Restoring``)."""

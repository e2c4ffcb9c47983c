"""Publishing: a kill between any two of its steps leaves nothing lost, doubled or foreign.

1. Temp files, synced, in the target folder.
2. One fenced transaction picks the names and notes in ``outputs`` what is about to be there, keeping what is there now.
3. With no transaction open: the source is checked, the temp files take their names, the folder is synced. A name taken
   meanwhile leads back to 2.
4. One fenced transaction: ``outputs`` says what is there, and the job is done.

A file is ours exactly when its path is in ``outputs`` and its hash is one of the two there, or when it is the empty
placeholder of a reserved name. Everything else belongs to somebody: the next free name is taken.

DO look at the disk outside a transaction and check inside it that the rows have not moved. DON'T hold one open over a
file operation: a network folder can take minutes to answer.
"""

# Paths are bytes here, which pathlib does not take.
# ruff: noqa: PTH118, PTH119, PTH120

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dropscribe.errors import OutputUnwritable, writing_error
from dropscribe.jobs import outputs
from dropscribe.jobs.database import transaction
from dropscribe.jobs.records import iso, printable, utcnow
from dropscribe.transcripts import files
from dropscribe.transcripts.formats import Rendered
from dropscribe.transcripts.names import Target, bases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from dropscribe.jobs.database import Database
    from dropscribe.jobs.outputs import Output
    from dropscribe.jobs.queue import Queue
    from dropscribe.jobs.records import Job

__all__ = ["Rendered", "Target", "publish", "sweep_temp_files"]

_ROUNDS = 50  # of picking names: more means that somebody takes every name we choose


@dataclass
class _File:
    """One format on its way."""

    rendered: Rendered
    temp: bytes
    identity: tuple[int, int]  # of the temp file, which it keeps under its name
    path: bytes = b""  # picked in step 2
    row: Output | None = None  # what ``outputs`` said of ``path`` when it was picked
    found: str = files.ABSENT  # what the disk said then: ABSENT, EMPTY or the hash of a file of ours
    reserved: bool = False  # ``outputs`` says that this attempt will write there
    placed: bool = False  # the temp file has taken the name
    fresh: bool = False  # the name was new: ours to take back

    @property
    def on_disk(self) -> str | None:
        return None if self.found in (files.ABSENT, files.EMPTY) else self.found


@dataclass
class _Attempt:
    """One call of ``publish``."""

    db: Database
    job: Job
    target: Target
    checkpoint: Callable[[str], None]
    files: list[_File] = field(default_factory=list)
    given_up: set[bytes] = field(default_factory=set)  # rows that must go: edited by the owner, or taken meanwhile


def publish(
    db: Database,
    queue: Queue,
    job: Job,
    target: Target,
    rendered: Sequence[Rendered],
    *,
    finish: Mapping[str, Any],
    check_source: Callable[[], None],
    in_commit: Callable[[], None] | None = None,
    checkpoint: Callable[[str], None] = lambda _step: None,
    now: Callable[[], datetime] = utcnow,
) -> dict[str, bytes]:
    """Write every rendering under its name and finish the job; returns the path of each format.

    ``finish`` are the keyword arguments of ``queue.finish_fields`` except ``transcript_path``, which is the first
    rendering's. ``check_source`` raises when the source is not the one that was read (``SourceChanged``,
    ``SourceMissing``). ``in_commit`` runs inside the last transaction, for rows that must land with it.
    ``checkpoint`` is called with the name of each step once that is done; tests kill the process there.

    Raises what ``check_source`` raises, ``DiskFull`` and ``OutputUnwritable`` for the folder, ``ClaimLost`` when the
    job is not held any more, and what ``transaction`` raises. Then the names that this attempt made are gone again; a
    file of ours that it replaced stays replaced, and known as ours.
    """
    attempt = _Attempt(db, job, target, checkpoint)
    deciding = False
    try:
        _write_temps(attempt, rendered, check_source)
        checkpoint("temps written")
        _place_all(attempt, check_source)
        with _writing(target.folder):
            files.sync_folder(target.folder)
        checkpoint("folder synced")
        paths = {file.rendered.format: file.path for file in attempt.files}
        with transaction(db):
            outputs.hold(db, job)
            for file in attempt.files:
                outputs.commit(db, job, file.rendered.format, file.path, sha256=file.rendered.sha256, at=iso(now()))
            queue.finish_fields(job, **{**finish, "transcript_path": printable(next(iter(paths.values())))})
            if in_commit is not None:
                in_commit()
            checkpoint("committing")
            deciding = True
    except BaseException:
        # An error of COMMIT itself leaves open what a power cut would show: the files stay, known as ours either way.
        if not deciding:
            _withdraw(attempt)
        raise
    finally:
        for file in attempt.files:
            if not file.placed:
                _forget(file.temp)
    checkpoint("committed")
    return paths


def sweep_temp_files(db: Database, folders: Iterable[bytes], trees: Iterable[bytes] = ()) -> int:
    """Remove the temp files that dead claims left in ``folders``, and in ``trees`` and below; returns how many.

    The files are listed before the claims: one that a new claim writes meanwhile is either not listed or known as live.
    """
    left = [found for folder in folders for found in files.temps(folder)]
    left += [found for tree in trees for found in files.temps(tree, below=True)]
    if not left:
        return 0
    live = outputs.live_claims(db)
    dead = [path for path, claim_id in left if claim_id not in live]
    return sum(_forget(path) for path in dead)


def _write_temps(attempt: _Attempt, rendered: Sequence[Rendered], check_source: Callable[[], None]) -> None:
    """Step 1."""
    folder = attempt.target.folder
    with _writing(folder):
        if attempt.target.make_folder:
            files.make_folder(folder)
        for one in rendered:
            try:
                temp = files.write_temp(folder, attempt.job.claim_id, one.content)
            except FileNotFoundError:
                check_source()  # the folder went with the source
                raise
            attempt.files.append(_File(one, temp, files.identity(temp)))
            attempt.checkpoint(f"temp written: {one.format}")


def _place_all(attempt: _Attempt, check_source: Callable[[], None]) -> None:
    """Steps 2 and 3, again and again until every file has a name."""
    for _ in range(_ROUNDS):
        with _writing(attempt.target.folder):
            _pick(attempt)
        attempt.checkpoint("names picked")
        if not _reserve(attempt):
            continue
        attempt.checkpoint("reserved")
        check_source()
        attempt.checkpoint("source checked")
        # New names first: those can be taken back if a later file fails, a replaced file cannot.
        for file in sorted(_waiting(attempt), key=lambda file: file.found != files.ABSENT):
            with _writing(file.path):
                _place(attempt, file)
            attempt.checkpoint(f"placed: {file.rendered.format}")
        if not _waiting(attempt):
            return
    raise OutputUnwritable(
        f"every name tried in {printable(attempt.target.folder)} was taken by another program at that moment; "
        "see what else writes there"
    )


def _waiting(attempt: _Attempt) -> list[_File]:
    return [file for file in attempt.files if not file.placed]


def _pick(attempt: _Attempt) -> None:
    """A path for each file that has none: the one this source's transcript had before, else the best free name."""
    own: dict[str, list[Output]] = {}
    for row in outputs.of_source(attempt.db, attempt.target.source):
        if os.path.dirname(row.path_raw) == attempt.target.folder:
            own.setdefault(row.format, []).append(row)
    new = []
    for file in _waiting(attempt):
        file.reserved = False
        known = [(row, _find(row)) for row in own.get(file.rendered.format, ()) if row.path_raw not in attempt.given_up]
        attempt.given_up.update(row.path_raw for row, found in known if found == files.FOREIGN)
        mine = [(row, found) for row, found in known if found != files.FOREIGN]
        if mine:
            file.row, file.found = min(mine, key=lambda pair: pair[1] == files.ABSENT)
            file.path = file.row.path_raw
        else:
            new.append(file)
    if new:
        _pick_new(attempt, new)


def _pick_new(attempt: _Attempt, new: Sequence[_File]) -> None:
    """One base for all: the one that files of this source have already, else the first that is free in every format."""
    for base in _bases(attempt, {id(file) for file in new}):
        paths = [os.path.join(attempt.target.folder, base + _suffix(file)) for file in new]
        rows = [outputs.at_path(attempt.db, path) for path in paths]
        if all(_free(attempt, path, row) for path, row in zip(paths, rows, strict=True)):
            for file, path, row in zip(new, paths, rows, strict=True):
                file.path, file.row, file.found = path, row, files.ABSENT
            return


def _suffix(file: _File) -> bytes:
    return b"." + file.rendered.format.encode()


def _bases(attempt: _Attempt, new: set[int]) -> Iterator[bytes]:
    for file in attempt.files:
        if id(file) not in new:
            yield os.path.basename(file.path).removesuffix(_suffix(file))
    yield from bases(attempt.target.source_name, name_max=files.name_max(attempt.target.folder))


def _free(attempt: _Attempt, path: bytes, row: Output | None) -> bool:
    if path == attempt.target.source or (row is not None and not row.abandoned):
        return False
    return files.look(path) == files.ABSENT


def _find(row: Output) -> str:
    """What is at the path of a row: ABSENT, the hash of our file, EMPTY for our placeholder, FOREIGN for the rest."""
    found = files.look(row.path_raw)
    if found == files.ABSENT or row.owns(found) or (found == files.EMPTY and row.reserved):
        return found
    return files.FOREIGN


def _reserve(attempt: _Attempt) -> bool:
    """Step 2, the transaction; False when a row has changed since it was read."""
    db, job = attempt.db, attempt.job
    with transaction(db):
        outputs.hold(db, job)
        waiting = _waiting(attempt)
        if any(outputs.at_path(db, file.path) != file.row for file in waiting):
            return False
        outputs.drop(db, attempt.given_up)
        for file in waiting:
            outputs.reserve(
                db, job, file.rendered.format, file.path, on_disk=file.on_disk, next_sha256=file.rendered.sha256
            )
        attempt.checkpoint("reserving")
    for file in waiting:
        file.reserved = True
    return True


def _place(attempt: _Attempt, file: _File) -> None:
    """Step 3 for one file. Not ``placed`` afterwards: the name was taken meanwhile."""
    # Looked at once more: the owner may have edited, moved or removed it since the names were picked.
    found = files.look(file.path)
    if found == files.ABSENT:
        file.fresh = True
        file.placed = files.place_new(file.temp, file.path, attempt.checkpoint)
        file.fresh = file.placed
    elif found in (file.found, file.rendered.sha256):
        file.fresh = file.on_disk is None
        files.replace(file.temp, file.path)
        file.placed = True
    if not file.placed:
        attempt.given_up.add(file.path)


def _withdraw(attempt: _Attempt) -> None:
    """Take back the names this attempt made, where they are still its own, and then the rows that announced them.

    It follows an error, which is the one to be raised: what cannot be undone here is left to the next attempt, which
    finds it in ``outputs``.
    """
    new = [file for file in attempt.files if file.reserved and file.on_disk is None]
    with suppress(Exception):
        for file in new:
            if file.fresh and files.look(file.path) == file.rendered.sha256:
                # Equal content may be another claim's work by now; the same file under the same hash is ours alone.
                if files.identity(file.path) != file.identity:
                    return
                files.unlink(file.path)
        files.sync_folder(attempt.target.folder)  # before the rows go: an unlinked file can come back after a power cut
        attempt.checkpoint("withdrawn")
        with transaction(attempt.db):
            for file in new:
                outputs.release(attempt.db, attempt.job, file.path, next_sha256=file.rendered.sha256)


def _forget(temp: bytes) -> bool:
    """Remove a temp file; one that cannot be removed is swept at the next start."""
    try:
        files.unlink(temp)
    except OSError:
        return False
    return True


@contextmanager
def _writing(path: bytes) -> Iterator[None]:
    """File errors as what they mean for the job."""
    try:
        yield
    except OSError as error:
        raise writing_error(error, printable(path)) from error

"""A lost job log, built anew: files whose transcripts are on disk come back as done."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dropscribe.jobs.database import transaction
from dropscribe.jobs.records import printable
from dropscribe.jobs.writer import Writer

if TYPE_CHECKING:
    from dropscribe.jobs.records import Restorable


class Restoring(Writer):
    """The supervisor's side of it; ``transcripts.restore`` finds out what there is."""

    def restore(
        self, root_id: int, path_raw: bytes, size_bytes: int, mtime_ns: int, restorable: Restorable
    ) -> int | None:
        """A done job from what its own transcripts say; the signature is of the file that was hashed. Returns its id.

        None, and nothing is written, when the log knows the path already (other than as left by setting) or when one of
        the transcripts is another job's.
        """
        with transaction(self.db):
            rows = self.db.rows(
                "SELECT id, error_kind, size_bytes, mtime_ns FROM jobs WHERE path_raw = ? ORDER BY id DESC LIMIT 1",
                (path_raw,),
            )
            if rows and (rows[0]["error_kind"], *rows[0][2:]) != ("preexisting", size_bytes, mtime_ns):
                return None
            for _, path, _ in restorable.outputs:
                if self.db.rows("SELECT 1 FROM outputs WHERE path_raw = ?", (path,)):
                    return None
            if rows:
                self.db.execute("DELETE FROM jobs WHERE id = ?", (rows[0]["id"],))
            return self._insert(root_id, path_raw, size_bytes, mtime_ns, restorable)

    def _insert(self, root_id: int, path_raw: bytes, size_bytes: int, mtime_ns: int, found: Restorable) -> int:
        at = self._time()
        cursor = self.db.execute(
            """
            INSERT INTO jobs (root_id, path, path_raw, size_bytes, mtime_ns, content_hash, state, queued_at, created_at,
              finished_at, audio_seconds, language, model, revision, params_key, warnings, transcript_path, text)
            VALUES (?, ?, ?, ?, ?, ?, 'done', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
            """,
            (root_id, printable(path_raw), path_raw, size_bytes, mtime_ns, found.content_hash, at, at,
             found.finished_at or at, found.audio_seconds, found.language, found.model, found.revision,
             found.params_key, json.dumps(found.warnings), found.transcript_path, found.text),
        )  # fmt: skip
        job_id = int(cursor.lastrowid or 0)
        self._insert_segments(job_id, found.params_key, found.segments)
        for output_format, path, sha256 in found.outputs:
            self.db.execute(
                "INSERT INTO outputs (job_id, format, path_raw, sha256, written_at) VALUES (?, ?, ?, ?, ?)",
                (job_id, output_format, path, sha256, found.finished_at or at),
            )
        return job_id

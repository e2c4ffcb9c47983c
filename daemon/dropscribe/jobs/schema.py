"""The job log's schema as migrations. docs/JOB_LOG.md says what every column means; people query these names.

A migration that has been released is never edited: add one, and add its name to ``records.MIGRATIONS``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlite_utils.migrations import Migrations

from dropscribe.jobs.records import FINISH_REASONS, FINISHED, STATES

if TYPE_CHECKING:
    from sqlite_utils import Database

migrations = Migrations("dropscribe")


def _words(words: tuple[str, ...]) -> str:
    return "(" + ", ".join(f"'{word}'" for word in words) + ")"


def _time(column: str, *, required: bool = False) -> str:
    """A UTC time column. The check holds the fixed width that makes text order time order."""
    return f"{column} TEXT{' NOT NULL' if required else ''} CHECK ({column} LIKE '____-__-__T__:__:__.___Z')"


def _measures(*columns: str) -> str:
    """Non-negative measured figures: seconds as REAL, counts as INTEGER."""
    real = ("audio_seconds", "duration", "time", "rtf")
    kinds = {column: "REAL" if column.endswith("_s") or column in real else "INTEGER" for column in columns}
    return ",\n  ".join(f"{column} {kind} CHECK ({column} >= 0)" for column, kind in kinds.items())


_ROOTS = f"""
CREATE TABLE roots (
  id INTEGER PRIMARY KEY,
  path TEXT NOT NULL UNIQUE,
  mounted INTEGER NOT NULL DEFAULT 0 CHECK (mounted IN (0, 1)),  -- was a mount point when last healthy
  state TEXT NOT NULL DEFAULT 'ok' CHECK (state IN ('ok', 'away', 'unreadable')),
  error TEXT,
  waiting INTEGER NOT NULL DEFAULT 0 CHECK (waiting >= 0),  -- files not whole yet, placeholders
  {_time("last_scan_at")}
) STRICT"""

_BATCHES = f"""
CREATE TABLE batches (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  claim_id TEXT NOT NULL,  -- a batch is one claim
  {_time("started_at", required=True)},
  {_time("finished_at")},
  outcome TEXT,  -- done, or why it ended early
  decoder TEXT,
  slots INTEGER CHECK (slots > 0),  -- rows decoded side by side
  model TEXT,
  device TEXT,
  rows INTEGER CHECK (rows >= 0),  -- segments decoded
  {_measures("audio_seconds", "feature_s", "encode_s", "prefill_s", "decode_s", "wall_s", "steps", "syncs")},
  {_measures("prompt_tokens", "generated_tokens", "peak_memory_bytes")},
  output_digest TEXT,  -- of all tokens: equal digests, equal output
  CHECK ((finished_at IS NULL) = (outcome IS NULL))
) STRICT"""

# Long text stands last: a scan over the other columns then never walks its overflow pages.
_JOBS = f"""
CREATE TABLE jobs (
  id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice
  root_id INTEGER NOT NULL REFERENCES roots(id),
  path TEXT NOT NULL,  -- absolute, printable
  path_raw BLOB NOT NULL CHECK (length(path_raw) > 0),  -- the name as the system has it
  size_bytes INTEGER NOT NULL CHECK (size_bytes >= 0),
  mtime_ns INTEGER NOT NULL,
  content_hash TEXT CHECK (length(content_hash) = 64),  -- sha256 of the file, once it was read
  state TEXT NOT NULL CHECK (state IN {_words(STATES)}),
  attempts INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),  -- tries that came to an end of their own
  suspect INTEGER NOT NULL DEFAULT 0 CHECK (suspect IN (0, 1)),  -- was held in a crash: runs alone, behind the others
  crashes INTEGER NOT NULL DEFAULT 0 CHECK (crashes >= 0),  -- lone crashes
  {_time("not_before")},
  priority INTEGER NOT NULL DEFAULT 0,  -- higher goes first
  {_time("queued_at", required=True)},
  claim_id TEXT,
  {_time("created_at", required=True)},
  {_time("started_at")},
  {_time("finished_at")},
  audio_seconds REAL CHECK (audio_seconds >= 0),
  language TEXT,
  model TEXT,
  params_key TEXT,  -- which segments count
  batch_id INTEGER REFERENCES batches(id) ON DELETE SET NULL,
  reused_from INTEGER REFERENCES jobs(id) ON DELETE SET NULL,
  error_kind TEXT,
  error TEXT,
  warnings TEXT NOT NULL DEFAULT '[]' CHECK (json_type(warnings) = 'array'),
  transcript_path TEXT,
  text TEXT,
  CHECK ((finished_at IS NOT NULL) = (state IN {_words(FINISHED)})),
  CHECK ((claim_id IS NOT NULL) = (state = 'running')),
  CHECK (state <> 'running' OR started_at IS NOT NULL),
  CHECK (not_before IS NULL OR state = 'queued'),
  CHECK (state IN ('queued', 'running') OR (error_kind IS NULL) = (state = 'done'))
) STRICT"""

_SEGMENTS = f"""
CREATE TABLE segments (
  id INTEGER PRIMARY KEY,  -- the full-text index refers to it, so it must survive VACUUM
  job_id INTEGER NOT NULL REFERENCES jobs(id) ON DELETE CASCADE,
  params_key TEXT NOT NULL,
  start_ms INTEGER NOT NULL CHECK (start_ms >= 0),
  end_ms INTEGER NOT NULL CHECK (end_ms >= start_ms),
  text TEXT NOT NULL,
  language TEXT,
  tokens INTEGER NOT NULL CHECK (tokens >= 0),
  finish_reason TEXT NOT NULL CHECK (finish_reason IN {_words(FINISH_REASONS)}),
  UNIQUE (job_id, params_key, start_ms)
) STRICT"""

_OUTPUTS = f"""
CREATE TABLE outputs (
  job_id INTEGER NOT NULL REFERENCES jobs(id) ON DELETE CASCADE,
  format TEXT NOT NULL,
  path_raw BLOB NOT NULL UNIQUE CHECK (length(path_raw) > 0),
  sha256 TEXT CHECK (length(sha256) = 64),  -- what is published
  next_sha256 TEXT CHECK (length(next_sha256) = 64),  -- what is being published
  {_time("written_at")},
  CHECK (sha256 IS NOT NULL OR next_sha256 IS NOT NULL)
) STRICT"""

_TIMINGS = f"""
CREATE TABLE timings (
  job_id INTEGER NOT NULL REFERENCES jobs(id) ON DELETE CASCADE,
  batch_id INTEGER NOT NULL REFERENCES batches(id) ON DELETE CASCADE,
  {_measures("read_s", "feature_s", "encode_s", "prefill_s", "decode_s", "prompt_tokens", "generated_tokens")},
  {_measures("duration", "time", "rtf")},
  PRIMARY KEY (job_id, batch_id)
) STRICT, WITHOUT ROWID"""

_SERVICE = f"""
CREATE TABLE service (
  id INTEGER PRIMARY KEY CHECK (id = 1),  -- one row
  pid INTEGER,
  worker_pid INTEGER,
  {_time("started_at")},
  paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
  problem TEXT  -- why nothing moves, if so
) STRICT"""

_BENCHMARKS = f"""
CREATE TABLE benchmarks (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  {_time("measured_at", required=True)},
  kind TEXT NOT NULL,  -- sweep, knobs, anatomy, eval, power
  device TEXT,
  model TEXT,
  decoder TEXT,
  slots INTEGER CHECK (slots > 0),
  {_measures("audio_seconds", "wall_s")},
  result TEXT NOT NULL CHECK (json_valid(result))
) STRICT"""

_INDEXES = (
    "CREATE UNIQUE INDEX jobs_one_queued ON jobs(path_raw) WHERE state = 'queued'",
    "CREATE UNIQUE INDEX jobs_one_running ON jobs(path_raw) WHERE state = 'running'",
    "CREATE INDEX jobs_claim_order ON jobs(suspect, priority DESC, queued_at, id) WHERE state = 'queued'",
    "CREATE INDEX jobs_claims ON jobs(claim_id) WHERE claim_id IS NOT NULL",
    "CREATE INDEX jobs_by_state ON jobs(state, finished_at)",
    "CREATE INDEX jobs_by_path ON jobs(path_raw, id)",
    # covers what a scan asks for and what `daily` asks for: neither then reads the rows with their texts
    """CREATE INDEX jobs_known ON jobs(
  root_id, path_raw, id, state, size_bytes, mtime_ns, content_hash, claim_id, error_kind)""",
    "CREATE INDEX jobs_by_day ON jobs(finished_at, state, model, audio_seconds) WHERE finished_at IS NOT NULL",
    "CREATE INDEX jobs_by_content ON jobs(content_hash, params_key) WHERE content_hash IS NOT NULL",
    "CREATE INDEX jobs_reused ON jobs(reused_from) WHERE reused_from IS NOT NULL",
    "CREATE INDEX jobs_by_batch ON jobs(batch_id) WHERE batch_id IS NOT NULL",
    "CREATE INDEX timings_by_batch ON timings(batch_id)",
    "CREATE INDEX outputs_by_job ON outputs(job_id)",
    "CREATE INDEX batches_open ON batches(claim_id) WHERE finished_at IS NULL",
)

_SEARCH = (
    """CREATE VIRTUAL TABLE segments_fts USING fts5(
  text, content = 'segments', content_rowid = 'id', tokenize = 'unicode61 remove_diacritics 2')""",
    """CREATE TRIGGER segments_fts_insert AFTER INSERT ON segments BEGIN
  INSERT INTO segments_fts(rowid, text) VALUES (new.id, new.text); END""",
    """CREATE TRIGGER segments_fts_delete AFTER DELETE ON segments BEGIN
  INSERT INTO segments_fts(segments_fts, rowid, text) VALUES ('delete', old.id, old.text); END""",
    """CREATE TRIGGER segments_fts_update AFTER UPDATE OF id, text ON segments BEGIN
  INSERT INTO segments_fts(segments_fts, rowid, text) VALUES ('delete', old.id, old.text);
  INSERT INTO segments_fts(rowid, text) VALUES (new.id, new.text); END""",
)

_VIEWS = (
    # one row for each file and batch it took part in; batch_rtf is 0.0x for faster than life, as rtf is
    """CREATE VIEW transcript_timings AS
SELECT j.id AS job_id, j.path, j.state, j.language, t.duration, t.time, t.rtf,
  b.wall_s AS batch_time, b.wall_s / nullif(b.audio_seconds, 0) AS batch_rtf, b.slots AS batch_size,
  t.read_s, t.feature_s, t.encode_s, t.prefill_s, t.decode_s, t.prompt_tokens, t.generated_tokens,
  b.id AS batch_id, b.decoder, b.model, b.device, b.started_at AS batch_started_at, j.finished_at
FROM timings t JOIN jobs j ON j.id = t.job_id JOIN batches b ON b.id = t.batch_id""",
    # what is being done and what comes next, in the order it is claimed
    """CREATE VIEW queue AS
SELECT row_number() OVER (ORDER BY state = 'queued', suspect, priority DESC, queued_at, id) AS place,
  id, path, state, priority, queued_at, not_before, started_at, attempts, suspect, crashes, size_bytes, audio_seconds,
  error_kind, error
FROM jobs WHERE state IN ('queued', 'running')""",
    # what ended without a transcript because something is wrong, newest first
    """CREATE VIEW failures AS
SELECT id, path, state, error_kind, error, attempts, crashes, finished_at
FROM jobs WHERE state IN ('failed', 'quarantined') ORDER BY finished_at DESC""",
    # one row for each UTC day and model
    """CREATE VIEW daily AS
SELECT substr(j.finished_at, 1, 10) AS day, j.model,
  sum(j.state = 'done') AS done, sum(j.state IN ('failed', 'quarantined')) AS failed,
  sum(j.state IN ('skipped', 'missing')) AS skipped,
  sum(CASE WHEN j.state = 'done' THEN j.audio_seconds END) AS audio_seconds,
  sum(j.time) AS time, sum(j.time) / nullif(sum(j.duration), 0) AS rtf
FROM (
  SELECT finished_at, state, model, audio_seconds,
    (SELECT sum(time) FROM timings WHERE job_id = jobs.id) AS time,
    (SELECT sum(duration) FROM timings WHERE job_id = jobs.id) AS duration
  FROM jobs WHERE finished_at IS NOT NULL) j
GROUP BY 1, 2""",
)


@migrations()
def m001_job_log(db: Database) -> None:
    """Everything of the first release."""
    tables = (_ROOTS, _BATCHES, _JOBS, _SEGMENTS, _OUTPUTS, _TIMINGS, _SERVICE, _BENCHMARKS)
    for statement in (*tables, *_INDEXES, *_SEARCH, *_VIEWS):
        db.execute(statement)
    db.execute("INSERT INTO service (id) VALUES (1)")


@migrations()
def m002_pauses_and_revision(db: Database) -> None:
    """What subtitles are cut at, and which version of the model said it: so that a transcript can be made anew."""
    db.execute("ALTER TABLE segments ADD COLUMN pauses TEXT CHECK (json_type(pauses) = 'array')")
    db.execute("ALTER TABLE jobs ADD COLUMN revision TEXT")


@migrations()
def m003_moves(db: Database) -> None:
    """Originals on their way to ``move_done_to``; and the indexes that tell a renamed file from a new one."""
    db.execute(
        f"""CREATE TABLE moves (
  job_id INTEGER PRIMARY KEY REFERENCES jobs(id) ON DELETE CASCADE,
  source_raw BLOB NOT NULL CHECK (length(source_raw) > 0),  -- where the original was
  hidden_raw BLOB NOT NULL CHECK (length(hidden_raw) > 0),  -- its name in between, in the same folder
  target_raw BLOB NOT NULL CHECK (length(target_raw) > 0),  -- where it goes
  {_time("created_at", required=True)},
  error TEXT  -- why it is not there yet
) STRICT"""
    )
    db.execute("CREATE INDEX jobs_by_signature ON jobs(size_bytes, mtime_ns)")
    db.execute(
        "CREATE INDEX jobs_unfinished_by_size ON jobs(size_bytes) "
        "WHERE content_hash IS NOT NULL AND state IN ('queued', 'running', 'missing')"
    )


@migrations()
def m004_known_content(db: Database) -> None:
    """Content that was known is not decoded, so its audio is told apart from what was; days are read from an index."""
    # finished_at once more: SQLite up to 3.40 would look into the rows for it
    db.execute(
        "CREATE INDEX jobs_daily ON jobs(substr(finished_at, 1, 10), model, state, audio_seconds, finished_at) "
        "WHERE finished_at IS NOT NULL"
    )
    for view in ("transcript_timings", "daily"):
        db.execute(f"DROP VIEW {view}")
    for statement in _VIEWS_OF_KNOWN_CONTENT:
        db.execute(statement)


_VIEWS_OF_KNOWN_CONTENT = (
    # t.batch_id, which is the same as b.id: ordered by it the newest rows are read from an index
    """CREATE VIEW transcript_timings AS
SELECT j.id AS job_id, j.path, j.state, j.language, t.duration, t.time, t.rtf,
  b.wall_s AS batch_time, b.wall_s / nullif(b.audio_seconds, 0) AS batch_rtf, b.slots AS batch_size,
  t.read_s, t.feature_s, t.encode_s, t.prefill_s, t.decode_s, t.prompt_tokens, t.generated_tokens,
  t.batch_id, b.decoder, b.model, b.device, b.started_at AS batch_started_at, j.finished_at,
  j.audio_seconds, j.reused_from
FROM timings t JOIN jobs j ON j.id = t.job_id JOIN batches b ON b.id = t.batch_id""",
    # The work of a day is that of its batches, which a prune leaves; one that broke off has the timings of its files.
    """CREATE VIEW daily AS
SELECT day, model, sum(done) AS done, sum(failed) AS failed, sum(skipped) AS skipped,
  sum(audio_seconds) AS audio_seconds, sum(decoded_seconds) AS decoded_seconds, sum(time) AS time,
  sum(time) / nullif(sum(decoded_seconds), 0) AS rtf
FROM (
  SELECT substr(finished_at, 1, 10) AS day, model, sum(state = 'done') AS done,
    sum(state IN ('failed', 'quarantined')) AS failed, sum(state IN ('skipped', 'missing')) AS skipped,
    sum(CASE WHEN state = 'done' THEN audio_seconds END) AS audio_seconds, NULL AS decoded_seconds, NULL AS time
  FROM jobs WHERE finished_at IS NOT NULL GROUP BY 1, 2
  UNION ALL
  SELECT substr(finished_at, 1, 10), model, 0, 0, 0, NULL,
    sum(coalesce(audio_seconds, (SELECT sum(duration) FROM timings WHERE batch_id = batches.id))),
    sum(CASE WHEN decode_s IS NULL THEN (SELECT sum(time) FROM timings WHERE batch_id = batches.id)
      ELSE coalesce(feature_s, 0) + coalesce(encode_s, 0) + coalesce(prefill_s, 0) + decode_s END)
  FROM batches WHERE finished_at IS NOT NULL GROUP BY 1, 2)
GROUP BY 1, 2""",
)

"""``dropscribe ui``: Datasette's pages show real rows, say what they are, refuse to write and get in nobody's way."""

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from dropscribe import ui
from dropscribe.errors import ConfigError, NotMedia
from dropscribe.jobs.database import checkpoint, open_database
from dropscribe.jobs.queue import Queue, SegmentRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytest.importorskip("datasette")
# datasette's libraries, on the newest Python, are not ours to correct
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TEXT = "the quick brown fox met a grüne Gans"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "odd name? #1%" / "any.db"
    db = open_database(path, checkpoints=True)
    queue = Queue(db)
    queue.ensure_root("/in")
    for name in (b"/in/fox.wav", b"/in/bad.wav", b"/in/odd-\xff.wav"):
        queue.enqueue(1, name, 10, 1)
    batch = queue.open_batch("c", decoder="bulk-sync", slots=6, model="tiny", device="cpu")
    fox, bad = queue.claim("c", 2)
    queue.save_segments(fox, "k", [SegmentRow(61_000, 75_000, TEXT, "English", 9, "loop")])
    queue.finish_fields(
        fox, text=TEXT, language="English", model="tiny", params_key="k", audio_seconds=75.0, batch_id=batch
    )
    queue.add_timing(fox.id, batch, {"decode_s": 3.0, "time": 5.0, "duration": 75.0, "rtf": 0.0667})
    queue.fail(bad, NotMedia("no audio in it"))
    queue.close_batch(batch, "done", {"wall_s": 6.0, "audio_seconds": 75.0, "rows": 1, "decode_s": 3.0})
    db.close()
    return path


@pytest.fixture
def get(log: Path) -> Iterator[Callable[[str], Any]]:
    datasette = ui.browser(log)

    def get(path: str) -> Any:
        return asyncio.run(datasette.client.get(path))

    yield get
    for database in datasette.databases.values():
        database.close()
    datasette.executor.shutdown()


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page))


def test_the_index_names_the_log_its_tables_and_its_questions(get: Callable[[str], Any]) -> None:
    assert "dropscribe" in get("/").text
    page = get("/jobs").text
    for name in ("jobs", "segments", "batches", "transcript_timings", "queue", "failures", "daily"):
        assert f'href="/jobs/{name}"' in page
    for title in ("Search what was said", "What failed, and why", "Slowest files", "Per day and model"):
        assert title in page
    assert 'href="/jobs/_sqlite_migrations"' not in page.split("hidden")[0].split("Queries")[0]


def test_the_jobs_page_has_rows_facets_and_descriptions(get: Callable[[str], Any]) -> None:
    page = get("/jobs/jobs").text
    assert "fox.wav" in page
    assert "odd-\\xff.wav" in page
    assert "queued, running, done, failed, quarantined, missing or skipped" in page
    facets = get("/jobs/jobs.json").json()["facet_results"]
    counts = {row["value"]: row["count"] for row in facets["state"]["results"]}
    assert counts == {"done": 1, "failed": 1, "queued": 1}
    assert "not_media" in text_of(get("/jobs/jobs?error_kind=not_media").text)


def test_a_job_is_a_page_with_its_text_and_what_belongs_to_it(get: Callable[[str], Any]) -> None:
    page = text_of(get("/jobs/jobs/1").text)
    assert TEXT in page
    assert re.search(r"1 row\s+from job_id in segments", page)
    assert "/in/fox.wav" in text_of(get("/jobs/segments").text)  # the label of the job it belongs to


def test_what_was_said_is_searched_with_words_of_any_kind(get: Callable[[str], Any]) -> None:
    page = text_of(get("/jobs/search?words=FOX").text)
    assert "»fox«" in page
    assert "1:01" in page
    assert "»grüne« »Gans«" in text_of(get("/jobs/search?words=gans+grune").text)
    for words in ("", '"', "NEAR(", "a AND", "*", "-", "x'y"):
        answer = get(f"/jobs/search.json?words={quote(words)}")
        assert (answer.status_code, answer.json()["rows"]) == (200, []), words
    assert TEXT in text_of(get("/jobs/segments?_search=fox").text)


def test_every_question_that_is_shipped_has_an_answer(get: Callable[[str], Any]) -> None:
    queries = get("/-/metadata.json").json()["databases"]["jobs"]["queries"]
    assert len(queries) >= 10
    empty = {"same_content"}
    for name in queries:
        answer = get(f"/jobs/{name}.json?words=fox&job=1&_shape=objects")
        assert answer.status_code == 200, (name, answer.text)
        assert bool(answer.json()["rows"]) == (name not in empty), name
        assert get(f"/jobs/{name}?words=fox&job=1").status_code == 200


def test_the_shipped_page_describes_tables_and_columns_that_exist(get: Callable[[str], Any], log: Path) -> None:
    tables = get("/-/metadata.json").json()["databases"]["jobs"]["tables"]
    db = open_database(log)
    for table, about in tables.items():
        columns = {row["name"] for row in db.rows(f"PRAGMA table_info({table})")}
        assert columns, table
        named = {*about.get("columns", {}), *about.get("facets", [])}
        named |= {about[key] for key in ("label_column", "sort_desc", "fts_pk") if key in about}
        assert named <= columns, table
    db.close()


@pytest.mark.parametrize(
    "sql",
    [
        "delete from jobs", "update jobs set text = ''", "insert into roots (path) values ('/x')", "drop table jobs",
        "pragma journal_mode = delete", "attach database '/tmp/x.db' as x", "vacuum into '/tmp/x.db'",
        "with x as (select 1) delete from jobs",
    ],
)  # fmt: skip
def test_writing_is_refused(get: Callable[[str], Any], log: Path, sql: str) -> None:
    assert get(f"/jobs?sql={quote(sql)}").status_code == 400
    db = open_database(log)
    assert db.rows("SELECT count(*) FROM jobs")[0][0] == 3
    db.close()


def test_its_connections_cannot_write_whatever_the_question(log: Path) -> None:
    datasette = ui.browser(log)
    database = datasette.databases["jobs"]
    conn = database.connect()
    for sql in ("DELETE FROM jobs", "CREATE TABLE x (y)", "PRAGMA user_version = 3"):
        with pytest.raises(Exception, match="readonly"):
            conn.execute(sql)
    with pytest.raises(PermissionError, match="read-only"):
        database.connect(write=True)
    database.close()


def test_it_shows_what_is_written_meanwhile_and_holds_nothing_up(get: Callable[[str], Any], log: Path) -> None:
    assert get("/jobs/jobs.json?_shape=array").json()[0]["id"] == 3
    db = open_database(log, checkpoints=True)
    queue = Queue(db)
    for number in range(20):
        queue.enqueue(1, b"/in/%d.wav" % number, 1, 1)
        assert get("/jobs/jobs.json?_shape=array").json()[0]["id"] == 4 + number
        assert checkpoint(db)  # no page left a transaction open
    db.close()


def test_without_datasette_it_says_what_to_install(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasette.app", None)
    with pytest.raises(ConfigError, match=r"pip install 'dropscribe\[ui\]'"):
        ui.browser(log)


def test_without_a_job_log_it_says_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dropscribe run"):
        ui.browser(tmp_path / "none.db")


def answers(url: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_the_command_serves_on_this_machine_only_until_it_is_told_to_stop(log: Path, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f"database = {json.dumps(str(log))}\n")
    command = [sys.executable, "-m", "dropscribe", "ui", "--port", "0", "--config", str(config)]
    env = {key: value for key, value in os.environ.items() if not key.startswith("DROPSCRIBE_")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:")
            assert answers(f"{address}jobs/jobs/1.json") == 200
            assert answers(address, Host="evil.example") == 403  # a name elsewhere that was made to point here
            busy = subprocess.run(
                [*command[:5], address.split(":")[2].strip("/"), *command[6:]],
                capture_output=True, text=True, env=env, check=False, timeout=60,
            )  # fmt: skip
            assert busy.returncode == 2
            assert "--port" in busy.stderr
            log.rename(log.with_suffix(".old"))
            open_database(log).close()
            assert answers(address) == 503
        finally:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()

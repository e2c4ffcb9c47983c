"""The pages say what is so: every column and kind is in them, every query runs, every command exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dropscribe import errors
from dropscribe.jobs.database import connect_readonly, open_database
from sample_log import make_log

TOP = Path(__file__).parents[1]
JOB_LOG = (TOP / "docs" / "JOB_LOG.md").read_text("utf-8")
README = (TOP / "README.md").read_text("utf-8")
PAGES = "\n".join(page.read_text("utf-8") for page in [TOP / "README.md", *sorted((TOP / "docs").glob("*.md"))])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.db"
    open_database(path, checkpoints=True).close()
    return path


def section(table: str) -> str:
    """The part of the page whose heading names ``table``."""
    return next(part for part in JOB_LOG.split("\n## ")[1:] if table in re.split(r"[\W]+", part.splitlines()[0]))


def test_every_column_of_the_job_log_is_explained(log: Path) -> None:
    conn = connect_readonly(log)
    tables = [name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    ours = [name for name in tables if not name.startswith(("_", "sqlite_", "segments_fts"))]
    assert len(ours) >= 8
    for table in ours:
        explained = set(re.findall(r"\w+", section(table)))
        columns = {column["name"] for column in conn.execute(f"PRAGMA table_info({table})")}
        assert columns <= explained, table
    views = [name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'view'")]
    for view in views:
        [row] = re.findall(rf"^\| {view} \| (.*) \|$", section("Views"), re.MULTILINE)
        columns = {column["name"] for column in conn.execute(f"PRAGMA table_info({view})")}
        timings = {column["name"] for column in conn.execute("PRAGMA table_info(timings)")}  # named as a whole there
        assert columns - set(re.findall(r"\w+", row)) <= timings, view
    conn.close()


def test_every_module_has_its_layer() -> None:
    architecture = (TOP / "docs" / "ARCHITECTURE.md").read_text("utf-8")
    table = architecture.split("| layer | modules |")[1].split("\n\n")[0]
    named = set(re.findall(r"`(\w+)`", table))
    package = Path(errors.__file__).parent
    modules = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert modules - named == {"__init__", "__main__"}


def test_every_query_of_the_pages_has_an_answer(tmp_path: Path) -> None:
    make_log(tmp_path / "jobs.db")
    conn = connect_readonly(tmp_path / "jobs.db")
    queries = re.findall(r"""['"](SELECT .*?)['"](?:$| -t$)""", JOB_LOG + README, re.MULTILINE)
    assert len(queries) == 3
    useful = re.findall(r"^    (SELECT [^;]*;)$", section("Useful"), re.MULTILINE)
    assert len(useful) >= 20
    elsewhere = re.findall(r"^    (SELECT [^;]*;)$", section("segments"), re.MULTILINE)
    assert len(elsewhere) == 1
    for query in [*queries, *useful]:
        assert conn.execute(query).fetchall(), query
    conn.execute(elsewhere[0]).fetchall()
    conn.close()


def test_every_error_kind_of_a_file_is_explained() -> None:
    def leaves(error: type[errors.DropscribeError]) -> list[type[errors.DropscribeError]]:
        return [leaf for child in error.__subclasses__() for leaf in leaves(child)] or [error]

    for error in [*leaves(errors.MediaError), *leaves(errors.TransientError), errors.SourceMissing]:
        assert f"`{error.error_kind}`" in JOB_LOG


def test_every_command_of_the_pages_exists() -> None:
    commands = set(re.findall(r"(?:^ +(?:\.venv/bin/)?|`)dropscribe ((?:jobs |config )?[a-z-]+)", PAGES, re.MULTILINE))
    assert {"run", "transcribe-batch", "jobs list", "jobs show", "config init"} <= commands
    for command in sorted(commands):
        done = subprocess.run(
            [sys.executable, "-m", "dropscribe", *command.split(), "--help"],
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, command


def test_every_link_between_the_pages_leads_somewhere() -> None:
    for page in [TOP / "README.md", *sorted((TOP / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"

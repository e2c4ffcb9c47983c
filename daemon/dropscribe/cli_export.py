"""``dropscribe export``: transcripts once more, in any format, from the job log alone."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dropscribe.cli_common import (
    ConfigOption,
    FormatOption,
    formats_of,
    job_log,
    job_named,
    like_a_filter,
    print_line,
    say,
)

if TYPE_CHECKING:
    from dropscribe.transcripts.formats import Document

STDOUT = "-"


def register(app: typer.Typer) -> None:
    """Put ``export`` under ``app``."""
    app.command("export")(export)


def export(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB…", help="Jobs by number, or by path or name of a file.")],
    *,
    formats: FormatOption = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="A file, a folder, or - for stdout.")
    ] = STDOUT,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
    config: ConfigOption = None,
) -> None:
    """Write transcripts again from the job log; the audio is not needed."""
    from dropscribe.transcripts.formats import render
    from dropscribe.transcripts.rebuild import document_of

    wanted = formats_of(formats, ("txt",))
    folder = Path(output).expanduser() if output != STDOUT and (output.endswith("/") or Path(output).is_dir()) else None
    if folder is None and (len(jobs) > 1 or len(wanted) > 1):
        raise typer.BadParameter("several transcripts need a folder that is there, or a name ending in /",
                                 param_hint="--output")  # fmt: skip
    documents: list[Document] = []
    with job_log(config) as conn:
        for name in jobs:
            if conn is None:
                raise typer.Exit(1)
            row = job_named(conn, name)
            document = document_of(conn, row)
            if document is None:
                say(f"job {row['id']} ({row['path']}) has no transcript: it is {row['state']}")
                raise typer.Exit(1)
            if row["state"] != "done":
                say(f"job {row['id']} is {row['state']}; this is the transcript it had before")
            documents.append(document)
    if folder is not None:
        for document in documents:
            for path in _into(folder, document, wanted, force=force):
                print_line(os.fsdecode(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))
        return
    (rendered,) = render(documents[0], wanted)
    if output != STDOUT:
        _write(Path(output).expanduser().absolute(), rendered.content, force=force)
        return
    like_a_filter()
    sys.stdout.flush()
    sys.stdout.buffer.write(rendered.content)
    sys.stdout.buffer.flush()


def _into(folder: Path, document: Document, formats: tuple[str, ...], *, force: bool) -> list[bytes]:
    """All formats of a document under the first base that is free."""
    from dropscribe.errors import writing_error
    from dropscribe.transcripts.files import name_max
    from dropscribe.transcripts.formats import render
    from dropscribe.transcripts.names import bases

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise writing_error(error, str(folder)) from None
    raw = os.fsencode(folder.absolute())
    for base in bases(document.source_name, name_max=name_max(raw)):
        paths = [os.path.join(raw, base + b"." + name.encode()) for name in formats]  # noqa: PTH118 - bytes
        if force or not any(map(os.path.lexists, paths)):
            for path, rendered in zip(paths, render(document, formats), strict=True):
                _write(Path(os.fsdecode(path)), rendered.content, force=force)
            return paths
    raise AssertionError("names never end")


def _write(path: Path, content: bytes, *, force: bool) -> None:
    """All or nothing, and never over a file that is there unless told so."""
    from dropscribe.errors import ConfigError, writing_error
    from dropscribe.transcripts import files

    target = os.fsencode(path)
    try:
        temp = files.write_temp(os.fsencode(path.parent), f"export{uuid.uuid4().hex}", content)
        try:
            if force and os.path.lexists(target):
                files.replace(temp, target)
                return
            if not files.place_new(temp, target, lambda _step: None):
                raise ConfigError(f"{path} is there already; name another file, or overwrite it with --force")
        finally:
            files.unlink(temp)
    except OSError as error:
        raise writing_error(error, str(path)) from None

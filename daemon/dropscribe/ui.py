"""The job log in a browser: Datasette, read-only, on this machine only. Needs the extra ``ui``."""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING, Any

from dropscribe import resources
from dropscribe.errors import ConfigError
from dropscribe.jobs.database import BUSY_SECONDS, connect_readonly, file_identity

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    Scope = dict[str, Any]
    App = Callable[[Scope, Any, Any], Awaitable[None]]

HOST = "127.0.0.1"
PORT = 8001
NAME = "jobs"  # of the database in addresses and in config/datasette.yaml, whatever the file is called
SETTINGS = {
    "sql_time_limit_ms": 5000,
    "default_page_size": 50,
    "truncate_cells_html": 400,
    "allow_download": False,  # the file alone is not the database while somebody writes to it
}


def browser(database: Path) -> Any:
    """A ``datasette.app.Datasette`` over the job log. Raises ``ConfigError`` and ``SchemaTooNew``."""
    connect_readonly(database).close()  # there, ours, and of this version
    os.environ["DATASETTE_LOAD_PLUGINS"] = ""  # plugins that happen to be installed have no business here
    try:
        from datasette.app import Datasette
        from datasette.database import Database
        from datasette.utils import parse_metadata
    except ImportError:
        raise ConfigError(
            "`dropscribe ui` needs Datasette: pip install 'dropscribe[ui]' (or 'datasette<1'), then start it again"
        ) from None

    class JobLog(Database):  # type: ignore[misc]
        """Every connection is read-only twice over; datasette's own would take a `?` in the path for its options."""

        def connect(self, write: bool = False) -> sqlite3.Connection:
            if write:
                raise PermissionError("the job log is read-only here; `dropscribe jobs` has what may be changed")
            uri = f"{database.absolute().as_uri()}?mode=ro"
            conn = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, check_same_thread=False)
            conn.execute("PRAGMA query_only = 1")
            self._all_file_connections.append(conn)
            return conn

    metadata = parse_metadata(resources.template("config/datasette.yaml"))
    datasette = Datasette([], metadata=metadata, settings=SETTINGS)
    datasette.add_database(JobLog(datasette, path=str(database), is_mutable=True), name=NAME)
    return datasette


def serve(database: Path, port: int, said: Callable[[str], None]) -> None:
    """Serve until a signal. ``said`` is called with the address once it is answered there."""
    datasette = browser(database)
    import socket

    import uvicorn

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError as error:
            raise ConfigError(
                f"port {port} of {HOST} cannot be used: {error.strerror}; choose another --port"
            ) from None
        listener.listen()
        port = listener.getsockname()[1]
        app = only_for_us(datasette.app(), database, port)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
        said(f"http://{HOST}:{port}/")
        server.run(sockets=[listener])


def only_for_us(app: App, database: Path, port: int) -> App:
    """``app``, but not for a page elsewhere whose name was made to point here, nor over a job log that is no more."""
    names = {f"{name}:{port}".encode() for name in (HOST, "localhost")}
    opened = file_identity(database)

    async def guarded(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            if dict(scope["headers"]).get(b"host") not in names:
                await _refuse(send, 403, "this address is for 127.0.0.1 and localhost only")
                return
            if file_identity(database) != opened:
                await _refuse(send, 503, "the job log was replaced; start `dropscribe ui` again")
                return
        await app(scope, receive, send)

    return guarded


async def _refuse(send: Any, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})

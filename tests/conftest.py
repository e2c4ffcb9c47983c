"""What holds for every test."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator

# A suite started in the background of a script ignores Ctrl-C, and so would every program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _the_log_as_it_was() -> Iterator[None]:
    """Commands set up the log of their process; here that is the process of all the other tests too."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)

"""What holds for every test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _the_log_as_it_was() -> Iterator[None]:
    """Commands set up the log of their process; here that is the process of all the other tests too."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)

"""Files that travel with the package: templates, the demo's model and its sample clips.

In a wheel the templates lie in ``dropscribe/templates/``; an editable install reads them where they are kept, at the
top of the checkout.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def template(name: str) -> str:
    """The text of a template, such as ``"config/dropscribe.toml"`` or ``"launchd/dropscribe.plist"``."""
    packaged = files("dropscribe").joinpath("templates", *name.split("/"))
    if packaged.is_file():
        return packaged.read_text("utf-8")
    return Path(__file__).parents[2].joinpath(name).read_text("utf-8")


def demo_model() -> AbstractContextManager[Path]:
    """The bundled model as a real directory, for as long as the context lasts."""
    return as_file(files("dropscribe").joinpath("demo", "model"))


def demo_samples() -> AbstractContextManager[Path]:
    """The bundled sample clips and their ``transcripts.tsv`` as a real directory."""
    return as_file(files("dropscribe").joinpath("demo", "samples"))

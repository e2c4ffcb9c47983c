"""Drop audio into a folder; find the transcript beside it."""

__version__ = "0.1.0"

"""Transcripts on disk: what they say (formats, join), what they are called (names), how they get there (publish)."""

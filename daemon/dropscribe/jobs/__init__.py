"""The job log: queue (the write side) and log (the read side) over one SQLite file."""

"""The demo: the real daemon on a temporary folder, with the bundled tiny model and sample clips."""

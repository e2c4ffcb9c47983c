"""Dropscribe as a service of the user's own: launchd on macOS, a systemd user unit on Linux; and the doctor.

``manager`` is the common face; only ``launchd`` and ``systemd`` know what their system is like.
"""

"""``python -m dropscribe``: the same commands without the script on PATH."""

from __future__ import annotations

from dropscribe.cli import main

if __name__ == "__main__":
    main()

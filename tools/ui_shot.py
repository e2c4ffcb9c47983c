"""`dropscribe ui` in a real browser: headless Chromium fetches each page, rows must be in it, pictures are taken.

    python tools/ui_shot.py [--database jobs.db] [--out DIR]

Without a database a small one is made up. Says so and leaves with 0 where no Chromium or Chrome is found.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BROWSERS = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)  # fmt: skip
PAGES = {  # name → path, what must be in it
    "index": ("jobs", "Search what was said"),
    "jobs": ("jobs/jobs", "talk-3.m4a"),
    "job": ("jobs/jobs/1", "quick brown fox"),
    "search": ("jobs/search?words=fox", "»fox«"),
    "per_day": ("jobs/per_day", "tiny"),
}


def made_up(path: Path) -> None:
    """A log with a few of everything."""
    from dropscribe.errors import NotMedia
    from dropscribe.jobs.database import open_database
    from dropscribe.jobs.queue import Queue, SegmentRow

    db = open_database(path, checkpoints=True)
    queue = Queue(db)
    root = queue.ensure_root("/home/me/Transcribe")
    for number in range(1, 13):
        suffix = "m4a" if number % 3 == 0 else "wav"
        queue.enqueue(root, f"/home/me/Transcribe/talk-{number}.{suffix}".encode(), 100_000 * number, number)
    batch = queue.open_batch("c", decoder="bulk-sync", slots=6, model="tiny", device="cpu")
    for number, job in enumerate(queue.claim("c", 9), 1):
        if number == 5:
            queue.fail(job, NotMedia("no audio container by content; is it really a recording?"))
            continue
        text = f"The quick brown fox gave talk number {number}, and everybody listened until the very end."
        queue.save_segments(job, "k", [SegmentRow(0, 60_000 * number, text, "English", 20, "eos")])
        queue.finish_fields(
            job,
            text=text,
            language="English",
            model="tiny",
            params_key="k",
            audio_seconds=60.0 * number,
            batch_id=batch,
        )
        queue.add_timing(
            job.id, batch, {"decode_s": 3.0, "time": 4.0 * number, "duration": 60.0 * number, "rtf": 4 / 60}
        )
    queue.close_batch(batch, "done", {"wall_s": 200.0, "audio_seconds": 2400.0, "rows": 8, "decode_s": 120.0})
    db.close()


def shoot(browser: str, address: str, out: Path) -> list[str]:
    """Pictures and page texts; returns what is wrong."""
    wrong = []
    with tempfile.TemporaryDirectory() as profile:
        for name, (path, expected) in PAGES.items():
            picture = out / f"{name}.png"
            command = [
                browser, "--headless", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
                "--window-size=1280,1000", *(["--no-sandbox"] if os.geteuid() == 0 else []),
            ]  # fmt: skip
            done = subprocess.run(
                [*command, "--dump-dom", address + path], capture_output=True, text=True, check=False, timeout=120
            )
            if expected not in html.unescape(re.sub(r"<[^>]+>", "", done.stdout)):
                wrong.append(f"{path}: {expected!r} is not on the page")
            subprocess.run(
                [*command, f"--screenshot={picture}", address + path], capture_output=True, check=False, timeout=120
            )
            if not picture.exists() or picture.stat().st_size < 5000:
                wrong.append(f"{path}: no picture")
            print(f"{path:26} {picture}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", type=Path)
    parser.add_argument("--out", type=Path, default=Path("ui-shots"))
    arguments = parser.parse_args()
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        print("skipped: no Chromium or Chrome is installed here")
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        database = arguments.database or Path(folder) / "jobs.db"
        if arguments.database is None:
            made_up(database)
        config = Path(folder) / "dropscribe.toml"
        config.write_text(f'database = "{database.absolute()}"\n')
        command = [sys.executable, "-m", "dropscribe", "ui", "--port", "0", "--config", str(config)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                address = server.stdout.readline().strip()
                wrong = shoot(browser, address, arguments.out) if address else ["the server did not start"]
            finally:
                server.terminate()
    sys.exit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()

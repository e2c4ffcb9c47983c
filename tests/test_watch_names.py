"""Every name a file can have, from the drop to the transcript and to the query, with the real program."""

from __future__ import annotations

import json
import os
import shutil
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

from real_daemon import Place, clips

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = {
    "newline": b"new\nline.flac",
    "quotes": b'it\'s "quoted" `x`.flac',
    "emoji": "\N{MICROPHONE}\N{VARIATION SELECTOR-16}.flac".encode(),
    "NFC": unicodedata.normalize("NFC", "caf\u00e9.flac").encode(),
    "NFD": unicodedata.normalize("NFD", "caf\u00e9.flac").encode(),
    "not UTF-8": b"\xff\xfe.flac",
    "255 bytes": "\N{CJK UNIFIED IDEOGRAPH-65E5}".encode() * 83 + b"x.flac",
    "leading dash": b"-rf.flac",
    "trailing dot": b"dot.flac.",
    "dot before the suffix": b"dot..flac",
    "trailing space": b"space.flac ",
    "percent": b"100%s%n.flac",
    "backslash": b"back\\slash.flac",
}


def test_any_name_works_from_drop_to_transcript_to_query(tmp_path: Path) -> None:
    [clip] = clips(1)
    with Place(tmp_path, decode={"batch_size": 4}) as place:
        made = list(drop_all(place, clip))
        assert len(NAMES["255 bytes"]) == 255
        assert place.once() == 0, place.log.read_text()
        rows = {bytes(row["path_raw"]): row for row in place.rows("SELECT * FROM jobs")}
        assert set(rows) == set(made)
        assert {row["state"] for row in rows.values()} == {"done"}
        listed = {one["id"]: one for one in json.loads(place.command("jobs", "list", "--json").stdout)}
        for raw, row in rows.items():
            outputs = place.rows("SELECT format, path_raw FROM outputs WHERE job_id = ?", row["id"])
            written = {one["format"]: Path(os.fsdecode(one["path_raw"])) for one in outputs}
            assert written["txt"].read_text().strip() == row["text"]
            document = json.loads(written["json"].read_text())
            name = document["source"]["name_hex"]
            assert (bytes.fromhex(name) if name else document["source"]["name"].encode()) == os.path.basename(raw)  # noqa: PTH119
            assert listed[row["id"]]["path"] == row["path"]
            assert "\n" not in row["path"]
        dash = place.command("jobs", "show", str(place.folder / "-rf.flac"), "--json")
        assert json.loads(dash.stdout)["state"] == "done"
        word = rows[made[0]]["text"].split()[0]
        found = json.loads(place.command("search", word, "--json").stdout)
        assert {one["path"] for one in found} <= {row["path"] for row in rows.values()}
        assert found
        place.check()


def drop_all(place: Place, clip: Path) -> Iterator[bytes]:
    """The clip under every name; where the file system makes one name of two, the first counts."""
    for name in NAMES.values():
        path = os.path.join(os.fsencode(place.folder), name)  # noqa: PTH118
        if os.path.lexists(path):
            continue
        try:
            shutil.copyfile(clip, path)
        except OSError:  # macOS takes no names that are not UTF-8
            continue
        yield path

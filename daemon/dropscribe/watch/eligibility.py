"""Is this file ours? Decided from names alone: pure, no file system.

The rules, in the order they are asked:

1. Nothing whose name starts with a dot, no system folder (recycle bins, thumbnails), no name of a download or copy in
   progress; for folders as for files (Safari downloads into a *folder* ``x.wav.download``).
2. In the most deeply nested watched folder only: what lies below another watched folder belongs to that one alone.
3. A suffix on the allow-list of audio and video containers, in any case, dots and spaces after it aside. What a file
   really is, the reader decides.
4. ``exclude`` wins over ``include``. A pattern without a slash is compared with every name on the way down, one with a
   slash with the whole path below the watched folder; ``*`` stays within one name, ``**`` does not.

Links (decided here, followed by ``scan``): a link to a file counts as that file under the link's name. A link to a
folder is followed once, unless it leads into or above the watched folder, where everything is seen already, or into
another watched folder (rule 2).
"""

from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dropscribe.settings import Watch

MEDIA_SUFFIXES = frozenset(
    b".3g2 .3gp .aac .ac3 .adts .aif .aifc .aiff .amr .ape .asf .au .avi .awb .bwf .caf .dts .dv .eac3 .f4a .f4v .flac "
    b".flv .m2a .m2ts .m4a .m4b .m4r .m4v .mka .mkv .mov .mp2 .mp3 .mp4 .mpc .mpeg .mpg .mpga .mts .mxf .oga .ogg .ogm "
    b".ogv .opus .qt .rf64 .snd .spx .tta .ts .vob .w64 .wav .wave .webm .wma .wmv .wv".split()
)
TRAILING = b". "  # what some systems add to names, and others cannot even store
TEMP_SUFFIXES = (b".part", b".partial", b".crdownload", b".download", b".tmp", b"~")
SYSTEM_FOLDERS = frozenset(
    name.lower()
    for name in (
        b"$RECYCLE.BIN", b"RECYCLER", b"System Volume Information", b"lost+found", b"__MACOSX", b"@eaDir", b"#recycle",
        b"#snapshot", b"Network Trash Folder", b"Temporary Items", b"TheVolumeSettingsFolder",
    )
)  # fmt: skip


def why_not_name(name: bytes) -> str | None:
    """Rule 1 for one name, file or folder: ``None`` if it passes, else a stable word."""
    if name.startswith(b"."):  # .dropscribe-*.tmp and ._resource-forks too
        return "temporary" if name.startswith((b"._", b".dropscribe-")) else "hidden"
    if name.lower().endswith(TEMP_SUFFIXES):
        return "temporary"
    return "system" if name.lower() in SYSTEM_FOLDERS else None


def has_media_suffix(name: bytes) -> bool:
    """Rule 3: the last suffix is on the allow-list."""
    name = name.rstrip(TRAILING)
    dot = name.rfind(b".")
    return dot > 0 and name[dot:].lower() in MEDIA_SUFFIXES


def is_inside(path: bytes, folder: bytes) -> bool:
    """``path`` is ``folder`` or below it; both absolute and normalised."""
    return path == folder or path.startswith(folder if folder.endswith(b"/") else folder + b"/")


@dataclass(frozen=True)
class Rules:
    """The rules of one watched folder. ``root`` is absolute, without a trailing slash."""

    root: bytes
    recursive: bool = True
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    inner: frozenset[bytes] = frozenset()  # other watched folders below this one
    others: tuple[tuple[bytes, bool], ...] = ()  # real paths of all other watched folders, and whether recursive
    _include: re.Pattern[str] | None = field(init=False, repr=False, compare=False)
    _exclude: re.Pattern[str] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_include", _compile(self.include))
        object.__setattr__(self, "_exclude", _compile(self.exclude))

    @property
    def prefix(self) -> bytes:
        """What every path below the root starts with."""
        return self.root if self.root.endswith(b"/") else self.root + b"/"

    def why_not_folder(self, path: bytes, name: bytes) -> str | None:
        """Whether to go into a folder, given that its parent was gone into."""
        if not self.recursive:
            return "not_recursive"
        if reason := why_not_name(name):
            return reason
        if path in self.inner:
            return "other_root"
        return "excluded" if self._exclude and self._exclude.fullmatch(self._relative(path)) else None

    def is_others(self, real: bytes) -> bool:
        """Whether a folder, by its real path, is another watched folder or below one that is recursive."""
        return any(real == other or (recursive and is_inside(real, other)) for other, recursive in self.others)

    def why_not_file(self, path: bytes, name: bytes) -> str | None:
        """Whether to take a file, given that its folder was gone into."""
        if reason := why_not_name(name):
            return reason
        if not has_media_suffix(name):
            return "not_media"
        if self._exclude and self._exclude.fullmatch(self._relative(path)):
            return "excluded"
        if self._include and not self._include.fullmatch(self._relative(path)):
            return "not_included"
        return None

    def why_not(self, path: bytes, *, folder: bool = False) -> str | None:
        """The whole way down to ``path``, for one that did not come from a walk."""
        if not path.startswith(self.prefix):
            return None if folder and path == self.root else "outside"
        names = path[len(self.prefix) :].split(b"/")
        at = self.root
        for name in names[:-1]:
            at = os.path.join(at, name)  # noqa: PTH118 - bytes
            if reason := self.why_not_folder(at, name):
                return reason
        return self.why_not_folder(path, names[-1]) if folder else self.why_not_file(path, names[-1])

    def _relative(self, path: bytes) -> str:
        """The path below the root as patterns see it: text in NFC, so that one typed on another system matches."""
        return unicodedata.normalize("NFC", os.fsdecode(path[len(self.prefix) :]))


def plan(watches: Iterable[Watch]) -> tuple[list[tuple[Watch, Rules]], list[tuple[Watch, Watch]]]:
    """The rules of all watched folders together, and the duplicates left out (each with the one that stands for it).

    Two entries for one folder, also by way of links: the first counts. Nested ones: see rule 2.
    """
    kept: dict[bytes, Watch] = {}
    twins = []
    for watch in watches:
        real = os.path.realpath(os.fsencode(watch.path))
        if real in kept:
            twins.append((watch, kept[real]))
        else:
            kept[real] = watch
    planned = []
    for real, watch in kept.items():
        root = os.fsencode(watch.path)
        # An inner root may be met under its own spelling or, when the outer one is a link, under the outer's
        inner = {os.fsencode(other.path) for theirs, other in kept.items() if theirs != real}
        inner |= {root + theirs[len(real) :] for theirs in kept if theirs != real and is_inside(theirs, real)}
        nested = frozenset(path for path in inner if is_inside(path, root))
        others = tuple((theirs, other.recursive) for theirs, other in kept.items() if theirs != real)
        planned.append((watch, Rules(root, watch.recursive, watch.include, watch.exclude, nested, others)))
    return planned, twins


def _compile(patterns: tuple[str, ...]) -> re.Pattern[str] | None:
    """One expression for all patterns, for ``fullmatch`` against a path below the root."""
    return re.compile("|".join(map(_translate, patterns)), re.DOTALL) if patterns else None


def _translate(pattern: str) -> str:
    pattern = unicodedata.normalize("NFC", pattern)
    anchored = "/" in pattern.rstrip("/")
    out = "" if anchored else "(?:.*/)?"
    position = 0
    pattern = pattern.strip("/")
    while position < len(pattern):
        rest = pattern[position:]
        if rest.startswith("**/"):
            out, position = out + "(?:.*/)?", position + 3
        elif rest.startswith("**"):
            out, position = out + ".*", position + 2
        elif found := re.match(r"\[(!?)([^]/]+)\]", rest):
            # as the shell has it: ranges work, everything else stands for itself
            inside = re.sub(r"([\\\[\]^&~|])", r"\\\1", found[2])
            out, position = out + f"[{'^' if found[1] else ''}{inside}]", position + found.end()
        else:
            out += {"*": "[^/]*", "?": "[^/]"}.get(rest[0]) or re.escape(rest[0])
            position += 1
    return out

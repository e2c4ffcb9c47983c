"""Every error dropscribe raises on purpose, and what each one means for the job it happened to.

::

    DropscribeError
    ├── ConfigError            config             a setting is wrong; names file, key and remedy
    ├── AlreadyRunning         already_running    another process holds the instance lock
    ├── ServiceError           service            launchd or systemd is not there, or refused
    ├── ModelError
    │   ├── ModelUnavailable   model_missing      not cached and not reachable: wait, then try again
    │   │   └── ModelNotFetched  model_not_fetched  the same where nothing was to be fetched: `doctor` alone
    │   └── ModelInvalid       model_invalid      files are there but are not a usable Qwen3-ASR
    ├── MediaError             (the file is at fault: no retry)
    │   ├── EmptyFile          empty_file
    │   ├── NotMedia           not_media          no audio container by content
    │   ├── NoAudioTrack       no_audio           a container without sound: skipped, not failed
    │   ├── DecodeFailed       decode_failed      the container is broken
    │   ├── BadSamples         bad_samples        NaN or Inf in the decoded audio
    │   ├── MediaLimit         media_limit        more audio, channels or memory than the reader allows
    │   ├── ReaderCrashed      reader_crashed     the reader child died on it
    │   └── ReaderHung         reader_hung        no progress within the limit
    ├── TransientError         (the world is at fault: back off and try again)
    │   ├── SourceChanged      source_changed     other bytes than the ones that were queued
    │   ├── SourceBusy         source_busy        EBUSY, EACCES, EAGAIN on the source
    │   ├── DiskFull           disk_full
    │   ├── OutputUnwritable   output_unwritable  read-only or forbidden target folder
    │   └── DatabaseBusy       database_busy      somebody else held the job log for too long
    ├── SourceMissing          source_missing     gone before it could be read: the job ends `missing`
    ├── Duplicate              duplicate          done under another name, and `duplicates = "skip"`: skipped
    ├── ClaimLost              claim_lost         another process owns the job now; nothing may be written
    ├── SchemaTooNew           schema_too_new     the job log was written by a newer dropscribe
    └── DatabaseReplaced       database_replaced  the file under our connection is no longer the one on disk

``error_kind`` is a public contract: it is stored in ``jobs.error_kind`` and people filter by it. ``str(error)`` is one
line for a person and says what to do about it.
"""

from __future__ import annotations

import errno


class DropscribeError(Exception):
    """Root of the tree. ``error_kind`` is stable; the message names the remedy."""

    error_kind: str = "internal"

    def __init_subclass__(cls, *, kind: str | None = None) -> None:
        if kind is not None:
            cls.error_kind = kind


class ConfigError(DropscribeError, kind="config"):
    """A setting is wrong. The message names the file, the key and the remedy."""


class AlreadyRunning(DropscribeError, kind="already_running"):
    """Another dropscribe holds the instance lock."""


class ServiceError(DropscribeError, kind="service"):
    """The service manager is not there, or refused; the message says what to do instead."""


class ModelError(DropscribeError, kind="model"):
    """Something about the model keeps the whole daemon from working; no single file is at fault."""


class ModelUnavailable(ModelError, kind="model_missing"):
    """The model is neither a local directory nor cached, and could not be fetched."""


class ModelNotFetched(ModelUnavailable, kind="model_not_fetched"):
    """A hub's model that nobody has asked the hub for yet; no error where it may be fetched."""


class ModelInvalid(ModelError, kind="model_invalid"):
    """The files are there but do not make a usable Qwen3-ASR model."""


class MediaError(DropscribeError, kind="media"):
    """The file itself is at fault. Never retried by itself: the same bytes would fail again."""


class EmptyFile(MediaError, kind="empty_file"):
    """Zero bytes."""


class NotMedia(MediaError, kind="not_media"):
    """No reader recognises the content, whatever the name says."""


class NoAudioTrack(MediaError, kind="no_audio"):
    """A container without an audio stream."""


class DecodeFailed(MediaError, kind="decode_failed"):
    """The container was recognised but its audio could not be decoded."""


class BadSamples(MediaError, kind="bad_samples"):
    """The decoded audio holds NaN or Inf."""


class MediaLimit(MediaError, kind="media_limit"):
    """The file asks for more than the reader allows (length, channels, memory)."""


class ReaderCrashed(MediaError, kind="reader_crashed"):
    """The reader child died while it read this file."""


class ReaderHung(MediaError, kind="reader_hung"):
    """The reader child made no progress on this file within the limit."""


class TransientError(DropscribeError, kind="transient"):
    """The world is at fault, not the file: back off and try again."""


class SourceChanged(TransientError, kind="source_changed"):
    """The source holds other bytes than the ones that were queued."""


class SourceBusy(TransientError, kind="source_busy"):
    """The source cannot be opened at the moment."""


class DiskFull(TransientError, kind="disk_full"):
    """No space (or quota) left where we write."""


class OutputUnwritable(TransientError, kind="output_unwritable"):
    """The folder a transcript belongs in cannot be written to."""


class DatabaseBusy(TransientError, kind="database_busy"):
    """Another program held the job log for longer than we wait."""


class SourceMissing(DropscribeError, kind="source_missing"):
    """The source is gone."""


class Duplicate(DropscribeError, kind="duplicate"):
    """Another job has transcribed this content, and the settings say that once is enough."""


class ClaimLost(DropscribeError, kind="claim_lost"):
    """The claim this work was done under is no longer ours; its result must not land."""


class SchemaTooNew(DropscribeError, kind="schema_too_new"):
    """The job log has migrations this version does not know."""


class DatabaseReplaced(DropscribeError, kind="database_replaced"):
    """The job log was deleted or replaced while it was open."""


def reading_error(error: OSError, path: str) -> DropscribeError:
    """The error of ours that an ``OSError`` on a *source* file stands for."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
        return SourceMissing(f"{path} is not there (any more); check its name, or drop it again to have it transcribed")
    return SourceBusy(f"cannot read {path}: {error.strerror}; it is tried again until it can be read")


def writing_error(error: OSError, path: str) -> DropscribeError:
    """The error of ours that an ``OSError`` on an *output* file stands for."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"no space left to write {path}; free some and the job goes on by itself")
    return OutputUnwritable(f"cannot write {path}: {error.strerror}; make the folder writable or set output_dir")

"""Settings: TOML file < environment (``DROPSCRIBE_…``) < flags, deep-merged, checked as a whole.

A nested key is spelled with two underscores in the environment: ``DROPSCRIBE_DECODE__BATCH_SIZE=4``. Unknown keys are
errors in the file and in the environment: a misspelled setting that is silently ignored costs a night's work.
"""

from __future__ import annotations

import os
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from platformdirs import user_config_path, user_data_path
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

from dropscribe.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_MODEL = "mlx-community/Qwen3-ASR-0.6B-4bit"
DEFAULT_BATCH_SIZE = 6  # the plateau seen elsewhere; a benchmark on this machine replaces it
ENV_PREFIX = "DROPSCRIBE_"
RESERVED_ENV = frozenset({"DROPSCRIBE_CONFIG", "DROPSCRIBE_TEST"})  # read elsewhere, not settings


def _expand(path: Path) -> Path:
    """``~`` expanded and made absolute, symbolic links left as the user wrote them."""
    return Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 - Path.resolve would follow links


UserPath = Annotated[Path, AfterValidator(_expand)]
OutputFormat = Literal["txt", "json"]
DecoderName = Literal["bulk-sync", "serial"]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def default_config_path() -> Path:
    """Where the configuration is looked for when ``--config`` names none."""
    return user_config_path("dropscribe", appauthor=False) / "dropscribe.toml"


def default_database_path() -> Path:
    """Where the job log lives unless ``database`` says otherwise."""
    return user_data_path("dropscribe", appauthor=False) / "jobs.db"


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Watch(_Table):
    """One watched folder (``[[watch]]``)."""

    path: UserPath
    recursive: bool = True
    language: str | None = Field(None, description="force this language, e.g. 'English'; detected when absent")
    context: str | None = Field(None, description="names and terms the recognizer should expect")
    formats: tuple[OutputFormat, ...] = Field(("txt", "json"), min_length=1)
    output_dir: UserPath | None = Field(None, description="mirror transcripts here instead of beside the audio")
    quiet_seconds: Seconds | None = Field(None, description="overrides settle.quiet_seconds for this folder")
    existing: Literal["take", "leave"] = Field("take", description="files already there at the very first start")
    include: tuple[str, ...] = Field((), description="glob patterns relative to path; empty takes everything eligible")
    exclude: tuple[str, ...] = Field((), description="glob patterns relative to path; wins over include")

    @field_validator("language")
    @classmethod
    def _one_word(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("name a language, or leave the key out to detect it")
        return value.strip() if value else None


class Settle(_Table):
    """When a file counts as whole."""

    quiet_seconds: Seconds = Field(3.0, description="no change of size, time or inode for this long")


class Scan(_Table):
    """The periodic comparison of the folders with the job log."""

    interval_seconds: float | None = Field(
        None, gt=0, description="default: 300 where native events work, 30 elsewhere"
    )


class Decode(_Table):
    """How the recognizer runs."""

    decoder: DecoderName = "bulk-sync"
    batch_size: int | Literal["auto"] = Field("auto", description="rows decoded side by side; auto: 6 until measured")
    kv_budget: int = Field(32768, ge=1024, description="tokens of key/value memory for all rows together")
    max_segment_seconds: float | None = Field(
        None, ge=5, le=1200, description="longest piece decoded at once; default: what the model says, else 300"
    )
    keep_loaded_seconds: Seconds = Field(120.0, description="how long an idle worker keeps the model")
    temperature: float = Field(0.0, ge=0, le=2, description="above 0: sampling, always on the serial path")
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    seed: int = 0

    @field_validator("batch_size")
    @classmethod
    def _in_range(cls, value: int | str) -> int | str:
        if isinstance(value, int) and not 1 <= value <= 64:
            raise ValueError("choose 1 to 64, or 'auto'")
        return value

    @property
    def slots(self) -> int:
        """Rows decoded side by side."""
        return DEFAULT_BATCH_SIZE if self.batch_size == "auto" else self.batch_size


class Reader(_Table):
    """Limits of the process that opens media files."""

    stall_seconds: float = Field(60.0, gt=0, description="no audio for this long: the file fails as reader_hung")
    max_hours: float = Field(24.0, gt=0, description="longest file taken")
    memory_mb: int = Field(2048, ge=256, description="address space of the reader beyond what it starts with")


class Log(_Table):
    """What the daemon prints about itself (stderr)."""

    level: Literal["debug", "info", "warning", "error"] = "info"


class Settings(_Table):
    """Everything one daemon needs to know. Immutable; hand it to other processes as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(DEFAULT_MODEL, min_length=1, description="hub id or local directory")
    database: UserPath = Field(default_factory=default_database_path)
    watch: tuple[Watch, ...] = ()
    settle: Settle = Settle()
    scan: Scan = Scan()
    decode: Decode = Decode()
    reader: Reader = Reader()
    log: Log = Log()

    def quiet_seconds(self, watch: Watch) -> float:
        """The settle time of one folder."""
        return self.settle.quiet_seconds if watch.quiet_seconds is None else watch.quiet_seconds


class _Environment(Settings, BaseSettings):  # type: ignore[misc]  # the two bases' model_config types differ
    """``Settings`` as pydantic-settings sees it: used to read the environment layer, never instantiated."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True)


def load_settings(config: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Merge the layers and check the result.

    ``config`` is the file of ``--config``; it must exist. Without it the default path is read if it is there.
    ``flags`` is a nested mapping of what was given on the command line. Raises ``ConfigError``.
    """
    path = config if config is not None else default_config_path()
    layers = {str(path): _read_toml(path, required=config is not None), "the environment": _read_environment()}
    layers["the command line"] = dict(flags or {})
    merged: dict[str, Any] = {}
    for layer in layers.values():
        merged = _merge(merged, layer)
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(problem, layers) for problem in error.errors())) from None


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` over ``below``, table by table; lists are replaced whole."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _read_toml(path: Path, *, required: bool) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if required:
            raise ConfigError(f"{path}: no such file; `dropscribe config init` writes a commented one") from None
        return {}
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}; strings need quotes, tables look like [[watch]]") from None


def _read_environment() -> dict[str, Any]:
    known = {f"{ENV_PREFIX}{name}".upper() for name in Settings.model_fields}
    for name in os.environ:
        if name.startswith(ENV_PREFIX) and name.split("__")[0] not in known | RESERVED_ENV:
            raise ConfigError(f"the environment: {name} is not a setting; known are {', '.join(sorted(known))}")
    try:
        return EnvSettingsSource(_Environment)()
    except SettingsError as error:
        raise ConfigError(f"the environment: {error}; lists and tables are given as JSON") from None


def _explain(problem: Any, layers: Mapping[str, Mapping[str, Any]]) -> str:
    """One line for one problem: where it was set, the key, what is wrong, what would be right."""
    keys = problem["loc"]
    source = next((name for name in reversed(layers) if _holds(layers[name], keys)), next(iter(layers)))
    dotted = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")
    if problem["type"] == "extra_forbidden":
        table: Any = Settings
        for key in keys[:-1]:
            table = _TABLES.get(str(key), table)
        near = get_close_matches(str(keys[-1]), list(table.model_fields), n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(table.model_fields)}"
        return f"{source}: `{dotted}` is not a setting; {hint}"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{source}: `{dotted}`: {message} (got {problem['input']!r})"


def _holds(layer: Any, keys: tuple[Any, ...]) -> bool:
    for key in keys:
        if isinstance(layer, dict) and key in layer:
            layer = layer[key]
        elif isinstance(layer, list | tuple) and isinstance(key, int) and key < len(layer):
            layer = layer[key]
        else:
            # a union member or a missing key: as deep as the layer goes, it does hold the parent
            return not isinstance(layer, dict | list | tuple)
    return True


_TABLES: dict[str, type[_Table]] = {
    "watch": Watch, "settle": Settle, "scan": Scan, "decode": Decode, "reader": Reader, "log": Log,
}  # fmt: skip

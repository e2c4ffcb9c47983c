"""Settings: TOML file < environment (``DROPSCRIBE_…``) < flags, deep-merged, checked as a whole.

A nested key is spelled with two underscores in the environment: ``DROPSCRIBE_DECODE__BATCH_SIZE=4``. Unknown keys are
errors in the file and in the environment: a misspelled setting that is silently ignored costs a night's work.
"""

from __future__ import annotations

import json
import os
import tomllib
from difflib import get_close_matches
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from platformdirs import user_config_path, user_data_path
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)

from dropscribe.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_MODEL = "mlx-community/Qwen3-ASR-0.6B-4bit"
MAX_BATCH_SIZE = 64
ENV_PREFIX = "DROPSCRIBE_"
CONFIG_ENV = "DROPSCRIBE_CONFIG"  # what ``--config`` reads when it is not given; not a setting
TEST_ENV_PREFIX = "DROPSCRIBE_TEST"  # hooks of the test suite; not settings


def _expand(path: Path) -> Path:
    """``~`` expanded and normalised, symbolic links left as the user wrote them."""
    expanded = path.expanduser()
    if not expanded.is_absolute():
        raise ValueError("give an absolute path, or one that starts with ~: a daemon has no current folder")
    return Path(os.path.normpath(expanded))


def _batch_size(value: object) -> object:
    """One check, so one message: a union would report each of its members."""
    if value == "auto":
        return value
    try:
        number = int(str(value))
    except ValueError:
        number = 0
    if isinstance(value, bool) or not 1 <= number <= MAX_BATCH_SIZE:
        raise ValueError(f"choose 1 to {MAX_BATCH_SIZE}, or 'auto'")
    return number


UserPath = Annotated[Path, AfterValidator(_expand)]
BatchSize = Annotated[int | Literal["auto"], BeforeValidator(_batch_size)]
OutputFormat = Literal["txt", "json", "srt", "vtt", "md"]
FORMATS: tuple[str, ...] = get_args(OutputFormat)
DecoderName = Literal["auto", "batched", "bulk-sync", "serial"]
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
    language: str | None = Field(default=None, description="force this language, e.g. 'English'; detected when absent")
    context: str | None = Field(default=None, description="names and terms the recognizer should expect")
    formats: tuple[OutputFormat, ...] = ("txt", "json")
    output_dir: UserPath | None = Field(default=None, description="mirror transcripts here instead of beside the audio")
    quiet_seconds: Seconds | None = Field(default=None, description="overrides settle.quiet_seconds for this folder")
    existing: Literal["take", "leave"] = Field(default="take", description="files there at the very first start")
    include: tuple[str, ...] = Field(default=(), description="glob patterns; empty: everything eligible")
    exclude: tuple[str, ...] = Field(default=(), description="glob patterns; wins over include")
    move_done_to: UserPath | None = Field(default=None, description="move originals here once they are done")

    @field_validator("formats")
    @classmethod
    def _each_once(cls, value: tuple[OutputFormat, ...]) -> tuple[OutputFormat, ...]:
        if not value:
            raise ValueError(f"name at least one of {', '.join(FORMATS)}")
        return tuple(dict.fromkeys(value))

    @field_validator("language")
    @classmethod
    def _not_blank(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("name a language, or leave the key out to detect it")
        return value.strip() if value else None


class Settle(_Table):
    """When a file counts as whole."""

    quiet_seconds: Seconds = Field(default=3.0, description="no change of size, time or inode for this long")


class Scan(_Table):
    """The periodic comparison of the folders with the job log."""

    interval_seconds: float | None = Field(
        default=None, gt=0, description="default: 300 where native events work, 30 elsewhere"
    )


class Decode(_Table):
    """How the recognizer runs."""

    decoder: DecoderName = Field(default="auto", description="auto: the fastest that is exact on this machine")
    exactness: Literal["serial", "row"] = Field(
        default="serial", description="what the batched decoder promises: the bits of one row alone, or independence"
    )
    batch_size: BatchSize = Field(
        default="auto",
        description="most rows decoded side by side; auto: what bench sweep --apply found, else as suits",
    )
    kv_budget: int = Field(default=32768, ge=1024, description="tokens of key/value memory for all rows together")
    max_segment_seconds: float | None = Field(
        default=None, ge=5, le=1200, description="longest piece decoded at once; default: what the model says, else 300"
    )
    keep_loaded_seconds: Seconds = Field(default=120.0, description="how long an idle worker keeps the model")
    temperature: float = Field(default=0.0, ge=0, le=2, description="above 0: sampling, always on the serial path")
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    seed: int = 0

    @property
    def most_rows(self) -> int | None:
        """The most rows side by side, or ``None`` where the recognizer may choose."""
        return None if self.batch_size == "auto" else self.batch_size


class Reader(_Table):
    """Limits of the process that opens media files."""

    stall_seconds: float = Field(default=60.0, gt=0, description="no audio for this long: reader_hung")
    max_hours: float = Field(default=24.0, gt=0, description="longest file taken")
    memory_mb: int = Field(default=2048, ge=256, description="address space of the reader beyond what it starts with")


AFTER_NAMES = ("transcript", "source", "job", "language", *FORMATS)


class After(_Table):
    """A command of the user's, run after each transcript."""

    command: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="program and arguments; {transcript}, {source}, {job} …"
    )
    timeout_seconds: float = Field(default=60.0, gt=0, le=3600, description="then it is killed")

    @field_validator("command")
    @classmethod
    def _known_names(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Braces are as in Python's format strings: a name of ours, or doubled."""
        for number, argument in enumerate(value or ()):
            try:
                names = [(name, spec, how) for _, name, spec, how in Formatter().parse(argument) if name is not None]
            except ValueError:
                raise ValueError(f"{argument!r}: write {{{{ and }}}} for braces themselves") from None
            if "\0" in argument or (number == 0 and (names or not argument.strip())):
                raise ValueError("the first is the program itself, by its path or a name in PATH")
            for name, spec, how in names:
                if name not in AFTER_NAMES or spec or how:
                    known = ", ".join(f"{{{one}}}" for one in AFTER_NAMES)
                    raise ValueError(f"{argument!r}: known are {known}; write {{{{ and }}}} for braces themselves")
        return value


class Log(_Table):
    """What the daemon prints about itself (stderr)."""

    level: Literal["debug", "info", "warning", "error"] = "info"


class Settings(_Table):
    """Everything one daemon needs to know. Immutable; hand it to other processes as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(default=DEFAULT_MODEL, min_length=1, description="hub id or local directory")
    database: UserPath = Field(default_factory=default_database_path)
    duplicates: Literal["reuse", "transcribe", "skip"] = Field(
        default="reuse", description="what becomes of content that was done under another name"
    )
    watch: tuple[Watch, ...] = ()
    settle: Settle = Settle()
    scan: Scan = Scan()
    decode: Decode = Decode()
    reader: Reader = Reader()
    after: After = After()
    log: Log = Log()

    @field_validator("model")
    @classmethod
    def _local_model(cls, value: str) -> str:
        """A folder becomes an absolute path, so that every process finds it; a hub id stays as it is."""
        path = Path(value).expanduser()
        return os.path.abspath(path) if value.startswith(("~", "/", ".")) or path.is_dir() else value  # noqa: PTH100

    @field_validator("watch")
    @classmethod
    def _folders_differ(cls, value: tuple[Watch, ...]) -> tuple[Watch, ...]:
        paths = [watch.path for watch in value]
        twice = next((path for path in paths if paths.count(path) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice} is there twice; keep one [[watch]] for it")
        return value

    @field_validator("watch")
    @classmethod
    def _done_ones_leave(cls, value: tuple[Watch, ...]) -> tuple[Watch, ...]:
        for watch in value:
            goal = watch.move_done_to
            if goal and any(goal.resolve().is_relative_to(other.path.resolve()) for other in value):
                raise ValueError(f"move_done_to = {goal} lies in a watched folder; choose one outside")
        return value

    def for_watching(self) -> Settings:
        """Itself; raises ``ConfigError`` when there is no folder to watch."""
        if not self.watch:
            raise ConfigError(
                "no folder to watch; `dropscribe config init` writes a config to name one in, under [[watch]]"
            )
        return self

    def quiet_seconds(self, watch: Watch) -> float:
        """The settle time of one folder."""
        return self.settle.quiet_seconds if watch.quiet_seconds is None else watch.quiet_seconds


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


def to_toml(settings: Settings) -> str:
    """The settings as a TOML file that gives them back; what is unset or empty is left out."""
    data = settings.model_dump(mode="json", exclude_none=True)
    scalars = {key: value for key, value in data.items() if not isinstance(value, dict) and key != "watch"}
    tables = [(f"[{key}]", value) for key, value in data.items() if isinstance(value, dict)]
    tables += [("[[watch]]", watch) for watch in data["watch"]]
    lines = _assignments(scalars)
    for heading, values in tables:
        if values:
            lines += ["", heading, *_assignments(values)]
    return "\n".join(lines) + "\n"


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the settings file. The same on every machine: defaults that are places are left out."""
    schema = Settings.model_json_schema(mode="validation")
    schema["title"] = "dropscribe.toml"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _assignments(values: Mapping[str, Any]) -> list[str]:
    # a JSON scalar or list of strings is TOML too, once DEL, which only TOML forbids, is escaped
    return [
        f"{key} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
        for key, value in values.items()
        if value != []
    ]


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
    given = {name.upper() for name in os.environ if name.upper().startswith(ENV_PREFIX)}
    given = {name for name in given if name != CONFIG_ENV and not name.startswith(TEST_ENV_PREFIX)}
    if not given:
        return {}  # the usual case, and pydantic_settings takes longer to import than the rest of this module
    known = {f"{ENV_PREFIX}{name}".upper() for name in Settings.model_fields}
    for name in sorted(given):
        if name.split("__")[0] not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
            raise ConfigError(f"the environment: {name} is not a setting; {hint}")
    return _parse_environment()


def _parse_environment() -> dict[str, Any]:
    from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

    class Environment(Settings, BaseSettings):
        """``Settings`` as pydantic-settings sees it: it reads the layer, the whole is checked after merging."""

        model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True)

    try:
        return EnvSettingsSource(Environment)()
    except SettingsError as error:
        raise ConfigError(f"the environment: {error}; lists and tables are given as JSON") from None


def _explain(problem: Any, layers: dict[str, dict[str, Any]]) -> str:
    """One line for one problem: where it was set, the key, what is wrong, what would be right."""
    keys: tuple[str | int, ...] = problem["loc"]
    where = f"{_source(keys, layers)}: "
    known = _known(keys[:-1])
    if len(keys) > 1 and isinstance(keys[1], int):
        where += f"[[{keys[0]}]] number {keys[1] + 1}: "
        keys = keys[2:] or keys[:1]
    name = f"`{'.'.join(key for key in keys if isinstance(key, str))}`"
    if problem["type"] == "extra_forbidden":
        near = get_close_matches(str(keys[-1]), known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(known)}"
        return f"{where}{name} is not a setting; {hint}"
    if problem["type"] == "missing":
        return f"{where}{name} is missing; add it"
    if problem["type"] == "value_error":  # one of ours
        message = str(problem["ctx"]["error"])
    else:
        whole = problem["type"] == "literal_error"  # its commas stand between the choices
        message = _PLAIN.get(problem["type"], problem["msg"] if whole else problem["msg"].split(",")[0])
    given = repr(problem["input"])
    return f"{where}{name}: {message} (got {given if len(given) <= 60 else given[:57] + '...'})"


def _source(keys: Sequence[str | int], layers: dict[str, dict[str, Any]]) -> str:
    """The topmost layer that set what ``keys`` names, or, where none did, the table it belongs in."""
    found = (
        name for depth in range(len(keys), 0, -1) for name in reversed(layers) if _holds(layers[name], keys[:depth])
    )
    return next(found, next(iter(layers)))


def _holds(layer: Any, keys: Sequence[str | int]) -> bool:
    for key in keys:
        try:
            layer = layer[key]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def _known(keys: Sequence[str | int]) -> list[str]:
    """The names that may stand in the table that ``keys`` leads to."""
    table: type[BaseModel] = Settings
    for key in keys:
        table = _TABLES.get(str(key), table)
    return list(table.model_fields)


_PLAIN = {  # what pydantic says in Python's words
    "tuple_type": "should be a list; [[watch]] starts a table of one",
    "model_type": "should be a table, under a heading in brackets",
}
_TABLES: dict[str, type[BaseModel]] = {
    "watch": Watch, "settle": Settle, "scan": Scan, "decode": Decode, "reader": Reader, "after": After, "log": Log,
}  # fmt: skip

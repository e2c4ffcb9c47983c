"""What is compared: settings, the prefill step and, to see what can be seen at all, an added delay."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dropscribe.asr.model import locate
from dropscribe.asr.prefill import PREFILL_STEP
from dropscribe.bench import running
from dropscribe.errors import ConfigError
from dropscribe.settings import Decode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dropscribe.settings import Settings

PREFILL, DELAY, MODEL = "prefill.step", "delay", "model"
DECODE = tuple(f"decode.{name}" for name in Decode.model_fields if name not in ("keep_loaded_seconds", "seed"))


@dataclass(frozen=True)
class Configuration:
    """One way to transcribe."""

    name: str
    settings: Settings
    prefill_step: int = PREFILL_STEP
    delay: float = 0.0  # of its own time, added: only to see what can be seen


def configured(name: str, given: Sequence[str], load: Callable[[Mapping[str, Any]], Settings]) -> Configuration:
    """A configuration from ``KEY=VALUE`` words; ``load`` makes settings of flags. Raises ``ConfigError``."""
    flags: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for word in given:
        key, value = _parsed(word)
        if key == PREFILL:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{word}: the prefill step is a number of positions, 1 or more")
            extra["prefill_step"] = value
        elif key == DELAY:
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 10:
                raise ConfigError(f"{word}: a delay is a share of a run's own time, such as 0.1")
            extra["delay"] = float(value)
        elif key == MODEL:
            flags[MODEL] = str(word.partition("=")[2])
        else:
            flags.setdefault("decode", {})[key.removeprefix("decode.")] = value
    return Configuration(name, load(flags), **extra)


def _parsed(word: str) -> tuple[str, Any]:
    key, equals, value = word.partition("=")
    known = (MODEL, *DECODE, PREFILL, DELAY)
    if not equals or not value or key not in known:
        raise ConfigError(f"{word!r} is no KEY=VALUE of a knob; the keys are {', '.join(known)}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def one_at_a_time(
    models: Sequence[str], vary: Sequence[str], load: Callable[[Mapping[str, Any]], Settings]
) -> list[Configuration]:
    """The base, then each other model, then each value of each ``KEY=A,B``; values that are the base's come once."""
    base = Configuration("base", load({}))
    found = [base, *(configured(f"{MODEL}={name}", [f"{MODEL}={name}"], load) for name in models)]
    for word in vary:
        key, _, values = word.partition("=")
        if key == DELAY:
            raise ConfigError("a delay is for --mode ab only")
        found += [
            configured(f"{key}={value}", [f"{key}={value}"], load)
            for value in dict.fromkeys(values.split(","))
            if value or not values
        ]
    different: dict[tuple[Settings, int], Configuration] = {}
    for one in found:
        different.setdefault((one.settings, one.prefill_step), one)
    return list(different.values())


def check_models(configurations: Sequence[Configuration]) -> None:
    """Find (or fetch) every checkpoint before anything is measured. Raises ``ModelError``."""
    for name in dict.fromkeys(one.settings.model for one in configurations):
        with running.model_at(name) as place:
            locate(place)

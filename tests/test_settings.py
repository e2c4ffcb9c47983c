"""Settings: three layers, checked as a whole; a problem names where it is, the key and the remedy."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

from dropscribe import resources
from dropscribe.errors import ConfigError
from dropscribe.settings import CONFIG_ENV, DEFAULT_MODEL, Settings, default_config_path, load_settings, to_toml

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.upper().startswith("DROPSCRIBE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home" / "data"))


@pytest.fixture
def config(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "dropscribe.toml"
        path.write_text(text, "utf-8")
        return path

    return write


def problem(config: Path | None = None, **flags: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(config, flags)
    return str(caught.value)


def test_without_any_layer_the_defaults_hold(tmp_path: Path) -> None:
    settings = load_settings()
    assert settings == Settings()
    assert settings.model == DEFAULT_MODEL
    assert settings.watch == ()
    assert settings.decode.most_rows is None
    assert tmp_path in settings.database.parents


def test_layers_merge_table_by_table_and_the_later_wins(
    config: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config('model = "a/file"\n[decode]\nbatch_size = 2\nseed = 1\nkv_budget = 2048\n')
    monkeypatch.setenv("DROPSCRIBE_DECODE__BATCH_SIZE", "4")
    monkeypatch.setenv("DROPSCRIBE_DECODE__SEED", "2")
    settings = load_settings(path, {"decode": {"seed": 3}})
    assert settings.model == "a/file"
    assert (settings.decode.kv_budget, settings.decode.batch_size, settings.decode.seed) == (2048, 4, 3)


def test_the_default_file_is_read_when_it_is_there(config: Callable[[str], Path]) -> None:
    default_config_path().parent.mkdir(parents=True)
    default_config_path().write_text('model = "from/default"')
    assert load_settings().model == "from/default"
    assert load_settings(config('model = "from/flag"')).model == "from/flag"


def test_folders_are_expanded_and_a_daemon_takes_no_relative_ones(
    config: Callable[[str], Path], tmp_path: Path
) -> None:
    settings = load_settings(config('[[watch]]\npath = "~/in/../drop"\n'))
    assert settings.watch[0].path == tmp_path / "home" / "drop"
    assert "give an absolute path" in problem(config('[[watch]]\npath = "drop"\n'))


def test_a_local_model_becomes_absolute_and_a_hub_id_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert load_settings(flags={"model": "mine"}).model == str(tmp_path / "mine")
    assert load_settings(flags={"model": "./not-yet"}).model == str(tmp_path / "not-yet")
    assert load_settings(flags={"model": "some/hub-id"}).model == "some/hub-id"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("decod = 1", ("`decod` is not a setting", "did you mean `decode`?")),
        ("[decode]\nbatchsize = 1", ("`decode.batchsize` is not a setting", "did you mean `batch_size`?")),
        ("[settle]\nzzz = 1", ("`settle.zzz`", "known here: quiet_seconds")),
        ('[decode]\nbatch_size = "many"', ("`decode.batch_size`: choose 1 to 64, or 'auto' (got 'many')",)),
        ("[decode]\nbatch_size = 65", ("choose 1 to 64",)),
        ("[decode]\nbatch_size = true", ("choose 1 to 64",)),
        ("[decode]\nbatch_size = 1.5", ("choose 1 to 64",)),
        ("[decode]\nkv_budget = 10", ("`decode.kv_budget`", "greater than or equal to 1024", "(got 10)")),
        ("[settle]\nquiet_seconds = nan", ("`settle.quiet_seconds`", "finite")),
        ('watch = "/x"', ("`watch`: should be a list", "[[watch]]")),
        ('watch = ["/x"]', ("[[watch]] number 1: `watch`: should be a table",)),
        ("[[watch]]\nrecursive = true", ("[[watch]] number 1: `path` is missing",)),
        ('[[watch]]\npath = "/a"\n[[watch]]\npath = "/b"\nformts = []', ("[[watch]] number 2: `formts`", "`formats`?")),
        ('[[watch]]\npath = "/a"\nformats = ["doc"]', ("`formats`: Input should be 'txt'", "(got 'doc')")),
        ('[after]\ncommand = ["/bin/x", "{sorce}"]', ("`after.command`", "known are {transcript}, {source}")),
        ('[after]\ncommand = ["{source}"]', ("the program itself",)),
        ('[after]\ncommand = ["/bin/x", "{"]', ("write {{ and }}",)),
        ('[[watch]]\npath = "/a"\nformats = []', ("name at least one",)),
        ('[[watch]]\npath = "/a"\nlanguage = " "', ("`language`: name a language",)),
        ('[[watch]]\npath = "/a"\n[[watch]]\npath = "/b/../a"', ("`watch`: /a is there twice",)),
    ],
)
def test_a_problem_in_the_file_is_one_line_with_file_key_and_remedy(
    config: Callable[[str], Path], text: str, words: tuple[str, ...]
) -> None:
    path = config(text)
    message = problem(path)
    assert len(message.splitlines()) == 1
    assert message.startswith(f"{path}: ")
    for word in words:
        assert word in message


def test_every_problem_is_named_at_once(config: Callable[[str], Path]) -> None:
    message = problem(config('model = ""\n[decode]\ntop_p = 2\n'))
    assert [line.split("`")[1] for line in message.splitlines()] == ["model", "decode.top_p"]


def test_files_that_cannot_be_read_say_why(config: Callable[[str], Path], tmp_path: Path) -> None:
    assert "dropscribe config init" in problem(tmp_path / "none.toml")
    assert "not valid TOML" in problem(config("model = unquoted"))
    assert "cannot be read" in problem(tmp_path)


def test_problems_name_the_environment_and_the_flags(
    config: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config("[decode]\nbatch_size = 3\n")
    assert problem(path, decode={"batch_size": 0}).startswith("the command line: `decode.batch_size`")
    monkeypatch.setenv("DROPSCRIBE_DECODE__BATCH_SIZE", "0")
    assert problem(path).startswith("the environment: `decode.batch_size`")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("DROPSCRIBE_MODLE", "x", "did you mean DROPSCRIBE_MODEL?"),
        ("DROPSCRIBE_DECODE__SED", "1", "did you mean `seed`?"),
        ("DROPSCRIBE_WATCH", "/a", "given as JSON"),
    ],
)
def test_a_misspelled_variable_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str) -> None:
    monkeypatch.setenv(name, value)
    message = problem()
    assert message.startswith("the environment: ")
    assert words in message


def test_variables_that_are_no_settings_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG_ENV, "/some/file.toml")
    monkeypatch.setenv("DROPSCRIBE_TEST_READER", "hang:x")
    monkeypatch.setenv("DROPSCRIBE_WATCH", '[{"path": "/a"}]')
    assert [str(watch.path) for watch in load_settings().watch] == ["/a"]


def test_settings_travel_to_other_processes_as_json_and_to_people_as_toml(config: Callable[[str], Path]) -> None:
    text = '[decode]\nbatch_size = 3\n[[watch]]\npath = "/a \\" \\u007f é/b"\nformats = ["json"]\nquiet_seconds = 1.5\n'
    settings = load_settings(config(text))
    assert Settings.model_validate_json(settings.model_dump_json()) == settings
    assert Settings.model_validate(tomllib.loads(to_toml(settings))) == settings


def test_a_folder_may_have_its_own_quiet_time() -> None:
    watch = [{"path": "/a"}, {"path": "/b", "quiet_seconds": 0}]
    settings = Settings.model_validate({"watch": watch, "settle": {"quiet_seconds": 7}})
    assert [settings.quiet_seconds(folder) for folder in settings.watch] == [7, 0]


def uncommented(template: str) -> str:
    """The template with every ``#key = value`` line made real; prose has a space after the ``#``."""
    lines = (line.removeprefix("#") for line in template.splitlines() if not line.startswith("# "))
    return "\n".join(lines)


def test_the_template_is_a_valid_config_with_one_folder() -> None:
    settings = Settings.model_validate(tomllib.loads(resources.template("config/dropscribe.toml")))
    assert [folder.path.name for folder in settings.watch] == ["Transcribe"]
    assert settings.model_copy(update={"watch": ()}) == Settings()


def test_the_template_is_the_manual_it_shows_every_setting_with_its_default() -> None:
    shown = tomllib.loads(uncommented(resources.template("config/dropscribe.toml")))
    settings = Settings.model_validate(shown)
    assert set(shown) == set(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        if isinstance(shown[name], dict):
            table = getattr(Settings(), name)
            assert set(shown[name]) == set(type(table).model_fields), name
            for key in type(table).model_fields:
                default = getattr(table, key)
                assert default is None or getattr(getattr(settings, name), key) == default, f"{name}.{key}"
        elif name == "watch":
            assert set(shown[name][0]) == set(type(settings.watch[0]).model_fields)
        elif name != "database":
            assert getattr(settings, name) == field.default


def test_without_variables_pydantic_settings_is_not_even_imported() -> None:
    code = "import sys; from dropscribe.settings import load_settings; load_settings(); print(*sorted(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "pydantic" in modules
    assert not {"pydantic_settings", "asyncio"} & set(modules)

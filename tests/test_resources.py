"""What travels with the package is there and says what it should, installed or in a checkout."""

from __future__ import annotations

import configparser
import plistlib

from dropscribe import resources
from dropscribe.demo.score import word_error_rate


def test_the_launchd_template_has_the_keys_that_field_reports_ask_for() -> None:
    plist = plistlib.loads(resources.template("launchd/dropscribe.plist").encode())
    assert plist["ProgramArguments"][1:5] == ["-m", "dropscribe", "run", "--config"]
    assert plist["ProcessType"] == "Interactive"
    assert plist["KeepAlive"] == {"SuccessfulExit": False}
    assert plist["ThrottleInterval"] >= 10
    assert plist["SoftResourceLimits"]["NumberOfFiles"] >= 1024
    assert plist["ExitTimeOut"] == 20
    assert "/opt/homebrew/bin" in plist["EnvironmentVariables"]["PATH"].split(":")
    assert plist["ProgramArguments"][-1] == "--service"


def test_the_systemd_template_stops_in_order_and_restarts_after_a_crash_only() -> None:
    unit = configparser.RawConfigParser()
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(resources.template("config/dropscribe.service"))
    service = dict(unit["Service"])
    assert service["ExecStart"] == "@PYTHON@ -m dropscribe run --config @CONFIG@ --service"
    assert (service["Restart"], service["KillMode"], service["TimeoutStopSec"]) == ("on-failure", "mixed", "20")


def test_the_model_and_the_samples_travel_with_the_package() -> None:
    with resources.demo_model() as model:
        files = {
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "preprocessor_config.json",
            "tokenizer.json",
        }
        assert files <= {path.name for path in model.iterdir()}
    with resources.demo_samples() as samples:
        rows = [line.split("\t") for line in (samples / "transcripts.tsv").read_text("utf-8").splitlines()[1:]]
        assert 4 <= len(rows) <= 6
        assert len({name.rsplit(".", 1)[1] for name, _, _ in rows}) == len(rows)
        assert {name for name, _, _ in rows} == {path.name for path in samples.iterdir()} - {"transcripts.tsv"}
        assert sum(path.stat().st_size for path in samples.iterdir()) < 1_000_000


def test_word_errors_are_counted_as_heard() -> None:
    assert word_error_rate("Don't stop, twenty-one!", "don’t stop twenty one") == 0
    assert word_error_rate("one two three four", "one two three for") == 0.25
    assert word_error_rate("one two", "") == 1
    assert word_error_rate("one", "one two three") == 2

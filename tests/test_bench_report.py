"""What every measurement leaves behind: a table, JSON, a picture, a row in the job log; after Ctrl-C too."""

from __future__ import annotations

import io
import json
import os
import signal
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import typer

from dropscribe.bench import plot
from dropscribe.bench.plot import Curve
from dropscribe.bench.report import Report, check_writable, deliver, host, measured
from dropscribe.cli_common import ctrl_c
from dropscribe.errors import ConfigError
from dropscribe.jobs.statistics import process_lives
from dropscribe.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.model_validate({"database": tmp_path / "log" / "jobs.db"})


def a_report() -> Report:
    report = Report("sweep", ("size", "seconds"), decoder="bulk-sync", slots=2)
    report.machine = {"device": "Device(cpu, 0)", "model": "a/model"}
    report.rows += [{"size": 1, "seconds": 1.23456, "hidden": [1]}, {"size": 2, "seconds": None, "hidden": [2]}]
    report.summary |= {"best": 1, "details": {"only": "JSON"}}
    report.curves.append(Curve("Speed", "size", "s", [1, 2], {"a": [1.0, 2.0], "b": [2.0, 1.0]}))
    return report


def kept(settings: Settings) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(settings.database)) as conn:
        return conn.execute("SELECT kind, device, model, decoder, slots, result FROM benchmarks").fetchall()


def test_people_see_the_columns_and_the_plain_values_of_the_summary(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    assert deliver(a_report(), settings, said.append, as_json=False) is True
    out = capsys.readouterr().out.splitlines()
    assert [line.split() for line in out] == [["size", "seconds"], ["1", "1.235"], ["2", "-"], ["best:", "1"]]
    assert said == []


def test_machines_get_everything_in_json_in_a_file_and_in_the_job_log(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = a_report()
    deliver(report, settings, lambda _text: None, as_json=True, output=tmp_path / "out.json")
    printed = json.loads(capsys.readouterr().out)
    assert printed == report.as_dict()
    assert printed["rows"][0] == {"size": 1, "seconds": 1.23456, "hidden": [1]}
    assert json.loads((tmp_path / "out.json").read_text("utf-8")) == printed
    [row] = kept(settings)
    assert row[:5] == ("sweep", "Device(cpu, 0)", "a/model", "bulk-sync", 2)
    assert json.loads(row[5]) == printed


@pytest.mark.parametrize(("suffix", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_a_plot_is_drawn_in_the_format_of_its_suffix(
    settings: Settings, tmp_path: Path, suffix: str, begins: bytes
) -> None:
    path = tmp_path / f"curve{suffix}"
    plot.check(path)
    deliver(a_report(), settings, lambda _text: None, as_json=True, plot=path)
    assert path.read_bytes().startswith(begins)


def test_a_plot_that_cannot_be_drawn_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a plot is one of \.png, \.svg, \.pdf"):
        plot.check(tmp_path / "curve.gif")
    with pytest.raises(ConfigError, match="there is no folder"):
        check_writable(None, tmp_path / "nowhere" / "curve.png")
    with pytest.raises(ConfigError, match="is a folder"):
        check_writable(tmp_path)


def test_ctrl_c_keeps_what_was_measured_until_then(settings: Settings) -> None:
    report, said = Report("sweep", ("n",)), []

    def parts() -> Iterator[None]:
        report.rows.append({"n": 1})
        yield
        raise KeyboardInterrupt

    measured(report, parts(), said.append)
    assert (report.interrupted, report.rows) == (True, [{"n": 1}])
    assert report.wall_s is not None
    assert said == ["interrupted: what was measured until now follows"]
    deliver(report, settings, said.append, as_json=True)
    assert json.loads(kept(settings)[0][5])["interrupted"] is True


def test_an_error_half_way_comes_out_when_all_that_was_measured_is_safe(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, said = Report("sweep", ("n",)), []

    def parts(rows: int) -> Iterator[None]:
        report.rows.extend({"n": at} for at in range(rows))
        yield
        raise RuntimeError("no memory left")

    measured(report, parts(1), said.append)
    with pytest.raises(RuntimeError, match="no memory left"):
        deliver(report, settings, said.append, as_json=True, output=tmp_path / "o.json")
    printed = json.loads(capsys.readouterr().out)
    assert (printed["interrupted"], printed["rows"]) == (True, [{"n": 0}])
    assert json.loads((tmp_path / "o.json").read_text("utf-8")) == json.loads(kept(settings)[0][5]) == printed
    assert "RuntimeError" in said[0]
    report.rows.clear()
    with pytest.raises(RuntimeError):
        measured(report, parts(0), said.append)


def test_whoever_reads_our_output_may_leave_and_the_rest_is_done(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Gone())
    with pytest.raises(BrokenPipeError):
        deliver(a_report(), settings, lambda _text: None, as_json=True, output=tmp_path / "o.json")
    assert len(kept(settings)) == 1
    assert (tmp_path / "o.json").exists()


def test_what_the_log_does_not_have_is_not_called_applied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "jobs.db").mkdir()
    report = a_report()
    report.summary["applied"] = {"batch_size": 2}
    settings = Settings.model_validate({"database": tmp_path / "jobs.db"})
    assert not deliver(report, settings, lambda _text: None, as_json=True)
    assert "applied" not in json.loads(capsys.readouterr().out)["summary"]


def test_a_job_log_that_cannot_be_written_costs_its_row_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jobs.db").write_bytes(b"this is no database, and never was one" * 100)
    said: list[str] = []
    settings = Settings.model_validate({"database": tmp_path / "jobs.db"})
    assert deliver(a_report(), settings, said.append, as_json=True) is False
    assert json.loads(capsys.readouterr().out)["kind"] == "sweep"
    assert len(said) == 1
    assert said[0].startswith("not kept in the job log: ")


def test_a_result_that_cannot_be_written_is_said_after_it_was_printed_and_kept(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="name another file"):
        deliver(a_report(), settings, lambda _text: None, as_json=True, output=tmp_path, plot=tmp_path / "p.svg")
    assert (tmp_path / "p.svg").exists()
    assert json.loads(capsys.readouterr().out)["kind"] == "sweep"
    assert len(kept(settings)) == 1


def test_the_host_names_versions_and_processor() -> None:
    assert {"machine", "system", "cores", "python", "dropscribe", "mlx", "mlx-audio"} == set(host())


def test_being_told_to_end_is_as_good_as_ctrl_c_and_over_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(typer.Exit) as left, ctrl_c():
        signal.raise_signal(signal.SIGTERM)
    assert left.value.exit_code == 130
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_number_that_no_process_has_lives_nowhere() -> None:
    assert process_lives(os.getpid())
    assert not process_lives(10**20)

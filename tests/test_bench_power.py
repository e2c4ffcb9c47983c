"""Power while a command runs: powermetrics' property lists, NVML, RAPL, and the command that must notice nothing."""

from __future__ import annotations

import json
import os
import plistlib
import shutil
import signal
import subprocess
import sys
import types
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dropscribe import cli
from dropscribe.bench import following, nvml, power, powermetrics, rapl
from dropscribe.bench.metering import Channel, Poller, Span, counted_spans, figures, spans_of
from dropscribe.errors import ConfigError
from dropscribe.jobs.database import connect_readonly

DATA = Path(__file__).parent / "data" / "powermetrics"  # made to the format of published recordings of each system
FIRST, SECOND = (DATA / name for name in ("macos14.plist", "macos12.plist"))


def samples(*parts: bytes) -> tuple[list[powermetrics.Sample], powermetrics.Parser]:
    parser = powermetrics.Parser()
    return [sample for part in parts for sample in parser.feed(part)], parser


# -- powermetrics' property lists --------------------------------------------------------------------------------------


def test_a_sample_of_macos_13_and_later_has_power_in_milliwatts() -> None:
    (sample,), parser = samples(FIRST.read_bytes())
    assert sample.seconds == pytest.approx(1.007249583)
    assert sample.watts == pytest.approx({"cpu": 2.97845, "gpu": 9.19861, "ane": 0.0, "package": 12.1771})
    assert sample.machine == {"hw_model": "Mac14,7", "kern_osversion": "23F79"}
    assert not parser.unusable
    assert not parser.cut_off


def test_a_sample_of_macos_12_has_energy_in_millijoules_over_its_length() -> None:
    (sample,), _ = samples(SECOND.read_bytes())
    assert sample.watts == pytest.approx({"cpu": 3.0, "gpu": 8.0, "ane": 0.01, "package": 12.0})


def test_a_sample_of_an_intel_mac_has_its_package_only() -> None:
    (sample,), _ = samples((DATA / "intel.plist").read_bytes())
    assert sample.watts == {"package": 23.5}


def test_samples_glued_by_nul_come_apart_however_the_stream_is_cut() -> None:
    stream = b"\0".join([FIRST.read_bytes(), SECOND.read_bytes(), FIRST.read_bytes()])
    whole, _ = samples(stream)
    assert [round(sample.watts["gpu"], 2) for sample in whole] == [9.2, 8.0, 9.2]
    for size in (1, 7, 1000, 4096):
        cut, parser = samples(*(stream[at : at + size] for at in range(0, len(stream), size)))
        assert cut == whole
        assert not parser.unusable


def test_a_last_sample_that_was_cut_off_is_left_out_and_the_others_count() -> None:
    stream = FIRST.read_bytes() + b"\0" + SECOND.read_bytes()
    begins = len(FIRST.read_bytes()) + 1
    for end in (begins + 5, begins + 300, len(stream) - 20, len(stream) - len(b"t>\n")):
        found, parser = samples(stream[:end])
        assert len(found) == 1
        assert parser.cut_off
        assert not parser.unusable


def test_garbage_before_the_first_sample_does_no_harm() -> None:
    for garbage in (b"Second underflow occured.\n", b"\0\0\xff\xfe<<>>&", b"*** Sampled system activity ***\n\n"):
        (sample,), parser = samples(garbage + FIRST.read_bytes())
        assert sample.watts["cpu"] == pytest.approx(2.97845)
        assert not parser.unusable


def test_a_sample_cut_off_in_the_middle_of_the_stream_costs_itself_only() -> None:
    found, parser = samples(FIRST.read_bytes()[:900] + b"\0" + SECOND.read_bytes() + b"\0" + FIRST.read_bytes())
    assert [round(sample.watts["gpu"], 2) for sample in found] == [8.0, 9.2]
    assert not parser.unusable


def document(**content: object) -> bytes:
    return plistlib.dumps(content)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"processor": {"cpu_power": 1000, "gpu_power": 2000.0}}, {"cpu": 1.0, "gpu": 2.0, "package": 3.0}),
        ({"processor": {"combined_power": 1500.0}}, {"package": 1.5}),
        ({"elapsed_ns": 2 * 10**9, "processor": {}, "gpu": {"gpu_energy": 500}}, {"gpu": 0.25, "package": 0.25}),
        ({"elapsed_ns": 10**9, "processor": {"cpu_power": -1.0, "cpu_energy": 7}}, {"cpu": 0.007, "package": 0.007}),
        ({"processor": {"cpu_power": True, "gpu_power": "7", "combined_power": 3.0}}, {"package": 0.003}),
    ],
)
def test_missing_and_odd_keys_leave_what_is_there(content: dict[str, object], expected: dict[str, float]) -> None:
    (sample,), _ = samples(document(**content))
    assert sample.watts == pytest.approx(expected)


@pytest.mark.parametrize(
    "content",
    [
        document(elapsed_ns=1),
        document(processor={"cpu_energy": 5}),  # energy, but in what time?
        document(processor=[]),
        document(processor={"combined_power": float("nan")}),
        plistlib.dumps(["no dictionary"]),
        b"<?xml version='1.0'?><plist><dict><key>processor</dict></plist>",
        b"<?xml version='1.0'?><plist><dict><key>elapsed_ns</key><integer>x</integer></dict></plist>",
    ],
)
def test_a_document_without_power_is_counted_and_the_next_one_read(content: bytes) -> None:
    found, parser = samples(content + b"\0" + FIRST.read_bytes())
    assert len(found) == 1
    assert parser.unusable == 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6000), st.binary(min_size=0, max_size=40)), max_size=4))
def test_no_bytes_whatever_break_the_parser(damage: list[tuple[int, bytes]]) -> None:
    stream = bytearray(FIRST.read_bytes() + b"\0" + SECOND.read_bytes())
    for at, what in damage:
        stream[at : at + len(what)] = what
    samples(bytes(stream))
    assert len(samples(bytes(stream) + b"\0" + FIRST.read_bytes())[0]) >= 1


def test_the_sudoers_line_allows_this_call_and_no_other() -> None:
    line = powermetrics.allowed_by(200, "mia")
    command = "/usr/bin/powermetrics --samplers cpu_power\\,gpu_power -i 200 -f plist -b 0"
    assert line == f"mia ALL=(root) NOPASSWD: {command}"
    assert "*" not in line
    assert " ".join(powermetrics.arguments(200)) == command.replace("\\", "")


# -- powermetrics as a process -----------------------------------------------------------------------------------------

SPEAKS = """
import sys, time
first = True
while True:
    time.sleep(0.02)
    sys.stdout.buffer.write((b"" if first else b"\\0") + open(sys.argv[1], "rb").read())
    sys.stdout.buffer.flush()
    first = False
"""


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may depend on how busy the machine is."""
    monkeypatch.setattr(powermetrics, "FIRST_SECONDS", 120.0)
    monkeypatch.setattr(powermetrics, "LAST_SECONDS", 120.0)


def stand_in(code: str = SPEAKS, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *(arguments or (str(FIRST),))]


def test_powermetrics_is_read_until_its_samples_cover_the_command() -> None:
    meter = powermetrics.PowerMetrics(0.02, command=stand_in())
    said: list[str] = []
    report, ran = power.measure(
        [sys.executable, "-c", "pass"], [meter], interval=0.02, audio_seconds=1800, say=said.append
    )
    assert ran.code == 0
    assert said == []
    assert meter._process.poll() is not None  # it does not go on by itself
    rows = {row["channel"]: row for row in report.rows}
    assert set(rows) == {"cpu", "gpu", "ane", "package"}
    gpu, wall = rows["gpu"], report.wall_s
    assert wall is not None
    assert (gpu["average_w"], gpu["max_w"]) == pytest.approx((9.19861, 9.19861))
    assert gpu["covered_s"] == pytest.approx(wall)
    assert gpu["joules"] == pytest.approx(9.19861 * wall)
    assert gpu["joules_per_audio_hour"] == pytest.approx(2 * gpu["joules"])
    assert report.machine["powermetrics"]["hw_model"] == "Mac14,7"


def test_sudo_that_would_ask_gives_the_line_that_allows_it() -> None:
    code = "import sys; sys.exit('sudo: a password is required')"
    with pytest.raises(ConfigError) as raised:
        powermetrics.PowerMetrics(0.25, command=stand_in(code)).start()
    assert "sudo -v" in str(raised.value)
    assert "NOPASSWD: /usr/bin/powermetrics --samplers cpu_power\\,gpu_power -i 250 -f plist -b 0" in str(raised.value)


def test_powermetrics_that_is_not_there_or_says_nothing_is_named() -> None:
    with pytest.raises(ConfigError, match="powermetrics"):
        powermetrics.PowerMetrics(0.2, command=["/nowhere/powermetrics"]).start()
    with pytest.raises(ConfigError, match="gave no sample: unrecognized sampler"):
        powermetrics.PowerMetrics(0.2, command=stand_in("import sys; sys.exit('unrecognized sampler')")).start()


def test_powermetrics_that_ends_early_leaves_what_it_said() -> None:
    code = "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read()); sys.stdout.flush()"
    meter = powermetrics.PowerMetrics(0.2, command=stand_in(code))
    said: list[str] = []
    report, ran = power.measure(
        [sys.executable, "-c", "pass"], [meter], interval=0.2, audio_seconds=None, say=said.append
    )
    assert ran.code == 0
    assert report.rows
    assert any("powermetrics ended before the command did" in line for line in said)


# -- NVML --------------------------------------------------------------------------------------------------------------

FAKE_NVML = """
import os, time
class NVMLError(Exception): pass
STARTED = time.monotonic()
WATTS = [float(w) for w in os.environ.get("FAKE_WATTS", "100").split(",")]
COUNTER = os.environ.get("FAKE_COUNTER", "yes") == "yes"
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlSystemGetDriverVersion(): return b"570.1"
def nvmlDeviceGetCount(): return len(WATTS)
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(handle): return b"NVIDIA Test"
def nvmlDeviceGetPowerUsage(handle):
    if WATTS[handle] < 0: raise NVMLError("Not Supported")
    return int(1000 * WATTS[handle])
def nvmlDeviceGetTotalEnergyConsumption(handle):
    if not COUNTER: raise NVMLError("Not Supported")
    return int(5000 + 1000 * WATTS[handle] * (time.monotonic() - STARTED))
"""


def fake_nvml(monkeypatch: pytest.MonkeyPatch, *, watts: str = "100", counter: bool = True) -> None:
    monkeypatch.setenv("FAKE_WATTS", watts)
    monkeypatch.setenv("FAKE_COUNTER", "yes" if counter else "no")
    module = types.ModuleType("pynvml")
    exec(FAKE_NVML, module.__dict__)  # noqa: S102 - ours
    monkeypatch.setitem(sys.modules, "pynvml", module)


@pytest.mark.parametrize("counter", [True, False])
def test_gpus_are_listed_and_summed(monkeypatch: pytest.MonkeyPatch, counter: bool) -> None:
    fake_nvml(monkeypatch, watts="100,50", counter=counter)
    said: list[str] = []
    report, _ = power.measure([sys.executable, "-c", "pass"], [nvml.Nvml(0.02)], interval=0.02, audio_seconds=None,
                              say=said.append)  # fmt: skip
    rows = {row["channel"]: row for row in report.rows}
    assert set(rows) == {"gpu 0 (NVIDIA Test)", "gpu 1 (NVIDIA Test)", "gpu"}
    assert rows["gpu"]["max_w"] == pytest.approx(150)
    parts = sum(row["joules"] for name, row in rows.items() if name != "gpu")
    assert rows["gpu"]["joules"] == pytest.approx(parts)
    assert said == []
    if not counter:  # integrated; a counter runs on while it is being read
        assert rows["gpu"]["joules"] == pytest.approx(150 * report.wall_s)
    assert report.machine["nvml"] == {"driver": "570.1", "gpus": ["gpu 0 (NVIDIA Test)", "gpu 1 (NVIDIA Test)"]}


def test_one_gpu_of_two_that_does_not_tell_its_power_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch, watts="100,-1", counter=False)
    meter = nvml.Nvml(0.02)
    meter.start()
    channels, troubles = meter.stop()
    assert [bool(channel.spans) for channel in channels] == [True, False, True]
    assert troubles == ["gpu 1 (NVIDIA Test) does not tell its power"]


def test_without_the_library_or_the_driver_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(ConfigError, match=r'pip install "dropscribe\[bench\]"'):
        nvml.Nvml()
    monkeypatch.undo()
    module = types.ModuleType("pynvml")
    exec(FAKE_NVML, module.__dict__)  # noqa: S102 - ours

    def refuse() -> None:
        raise module.NVMLError("NVML Shared Library Not Found")

    module.nvmlInit = refuse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with pytest.raises(ConfigError, match=r"NVML Shared Library Not Found.*driver.*nvidia-smi"):
        nvml.Nvml()


def test_the_real_library_is_asked_where_it_is() -> None:
    """The real nvidia-ml-py: figures where there is a GPU, the message where there is none."""
    pytest.importorskip("pynvml")
    if shutil.which("nvidia-smi"):
        found = nvml.sample(0.05, interval=0.02)
        assert found["gpus"]
        assert all(figure["max_w"] > 0 for figure in found["channels"].values())
    else:
        with pytest.raises(ConfigError, match="nvidia-smi"):
            nvml.Nvml()


def test_nvml_can_be_sampled_without_the_rest_of_the_package(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text(FAKE_NVML)
    for name in ("pydantic", "typer", "mlx", "structlog", "rich", "platformdirs"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not on this machine')")
    root = Path(power.__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(root)]), "FAKE_WATTS": "70"}
    command = [sys.executable, "-m", "dropscribe.bench.nvml", "--interval-ms", "20"]
    done = subprocess.run([*command, "--seconds", "0.05"], env=env, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["channels"]["gpu 0 (NVIDIA Test)"]["max_w"] == pytest.approx(70)
    done = subprocess.run([*command, "--", sys.executable, "-c", "raise SystemExit(5)"], env=env, capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode == 5
    assert json.loads(done.stdout)["exit_code"] == 5


# -- RAPL --------------------------------------------------------------------------------------------------------------


def package(powercap: Path, number: int, microjoules: int, *, wraps_at: int = 10**9) -> Path:
    folder = powercap / f"intel-rapl:{number}"
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"package-{number}\n")
    (folder / "max_energy_range_uj").write_text(f"{wraps_at}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    return folder


def test_packages_are_summed_their_parts_are_not_and_a_counter_may_begin_anew(tmp_path: Path) -> None:
    first, second = package(tmp_path, 0, 10**9 - 5_000_000), package(tmp_path, 1, 1_000_000)
    part = package(tmp_path, 2, 0).rename(tmp_path / "intel-rapl:0:0")
    meter = rapl.Rapl(600.0, powercap=tmp_path)
    meter.start()
    (first / "energy_uj").write_text("15000000")  # 20 J on, past its range
    (second / "energy_uj").write_text("11000000")  # 10 J on
    (part / "energy_uj").write_text("999")
    (channel,), troubles = meter.stop()
    (span,) = channel.spans
    assert span.watts * (span.end - span.start) == pytest.approx(30)
    assert troubles == []


def test_counters_that_are_not_there_or_forbidden_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no package"):
        rapl.Rapl(0.1, powercap=tmp_path)
    folder = package(tmp_path, 0, 5)

    def forbidden(path: Path) -> int:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return 10**9

    monkeypatch.setattr(rapl, "_read", forbidden)
    with pytest.raises(ConfigError, match=rf"sudo chmod a\+r .*{folder.name}"):
        rapl.Rapl(0.1, powercap=tmp_path)


# -- figures -----------------------------------------------------------------------------------------------------------


def test_figures_are_integrated_over_the_command_only() -> None:
    channel = Channel("gpu", [Span(0, 2, 10), Span(2, 4, 30), Span(4, 6, 50)])
    assert figures(channel, 1, 5) == (30, 50, 10 + 60 + 50, 4)
    assert figures(channel, 0, 1) == (10, 10, 10, 1)
    assert figures(channel, 7, 8) == (None, None, None, 0)
    channel.joules = 100.0  # a counter knows better
    assert figures(channel, 1, 5) == (25, 50, 100, 4)


def test_power_read_at_moments_is_averaged_between_them_and_counters_are_differences() -> None:
    seen = [(0.0, {"a": 10.0}), (1.0, {"a": 20.0, "b": 1.0}), (1.0, {"a": 99.0, "b": 1.0}), (3.0, {"b": 5.0})]
    assert spans_of(seen, "a") == [Span(0, 1, 15)]
    assert spans_of(seen, "b") == [Span(1, 3, 3)]
    assert counted_spans(seen, "b") == [Span(1, 3, 2)]


def test_a_reader_that_breaks_ends_the_readings_and_says_so() -> None:
    values = iter([{"a": 1.0}])
    poller = Poller(lambda: next(values), 600.0)
    poller.start()
    seen, failed = poller.stop()
    assert [watts for _, watts in seen] == [{"a": 1.0}]
    assert isinstance(failed, StopIteration)


def test_a_long_curve_is_thinned_and_keeps_its_energy() -> None:
    spans = [Span(at, at + 1, at % 7) for at in range(10_007)]
    thin = power.thinned(spans, 100)
    assert len(thin) <= 100
    assert (thin[0].start, thin[-1].end) == (0, 10_007)
    energy = [sum(span.watts * (span.end - span.start) for span in some) for some in (spans, thin)]
    assert energy[0] == pytest.approx(energy[1])


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ([sys.executable, "-c", "raise SystemExit(7)"], 7),
        ([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"], 137),
        (["/nowhere/at-all"], 127),
        ([str(DATA)], 126),  # a folder
    ],
)
def test_the_exit_code_is_kept(command: list[str], code: int) -> None:
    ran = following.follow(command)
    assert ran.code == code
    assert (ran.error is None) == (code not in (126, 127))


def test_handlers_are_as_before() -> None:
    before = [signal.getsignal(number) for number in following.PASSED_ON]
    following.follow([sys.executable, "-c", "pass"])
    assert [signal.getsignal(number) for number in following.PASSED_ON] == before


on_linux = pytest.mark.skipif(sys.platform == "darwin", reason="macOS asks powermetrics, which needs sudo")


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with two GPUs."""
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "pynvml.py").write_text(FAKE_NVML)
    env = {name: value for name, value in os.environ.items() if not name.startswith("DROPSCRIBE_")}
    return {
        **env,
        "PYTHONPATH": str(tmp_path / "fake"),
        "FAKE_WATTS": "100,50",
        "FAKE_COUNTER": "no",
        "DROPSCRIBE_DATABASE": str(tmp_path / "jobs.db"),
        "HOME": str(tmp_path),
    }


def bench_power(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dropscribe", "bench", "power", *arguments]


@on_linux
def test_the_command_has_its_streams_and_its_options_to_itself(machine: dict[str, str], tmp_path: Path) -> None:
    says = "import sys; print(sys.argv[1:]); print('trouble', file=sys.stderr); print(sys.stdin.read()); sys.exit(3)"
    plot, output = tmp_path / "power.png", tmp_path / "power.json"
    done = subprocess.run(
        bench_power("--audio-seconds", "1800", "--interval-ms", "20", "--output", str(output), "--plot", str(plot),
                    "--", sys.executable, "-c", says, "--json", "--interval-ms"),
        env=machine, capture_output=True, text=True, input="given", check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stdout == "['--json', '--interval-ms']\ngiven\n"
    assert "trouble\n" in done.stderr
    assert "joules_per_audio_hour" in done.stderr
    assert plot.read_bytes().startswith(b"\x89PNG")
    found = json.loads(output.read_text())
    row = next(row for row in found["rows"] if row["channel"] == "gpu")
    assert row["average_w"] == pytest.approx(150)
    assert row["joules"] == pytest.approx(150 * found["summary"]["wall_s"])
    assert row["joules_per_audio_hour"] == pytest.approx(2 * row["joules"])
    assert found["summary"]["exit_code"] == 3
    with closing(connect_readonly(tmp_path / "jobs.db")) as conn:
        kept = conn.execute("SELECT kind, audio_seconds, wall_s, result FROM benchmarks").fetchall()
    assert [tuple(row)[:3] for row in kept] == [("power", 1800, found["summary"]["wall_s"])]
    assert json.loads(kept[0][3])["rows"] == found["rows"]


@on_linux
def test_ctrl_c_reaches_the_command_and_what_was_measured_is_given(machine: dict[str, str]) -> None:
    waits = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(9))\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)"
    )
    process = subprocess.Popen(
        bench_power("--interval-ms", "20", "--", sys.executable, "-c", waits),
        env=machine, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)  # to us alone
    _, said = process.communicate(timeout=60)
    assert process.returncode == 9
    assert "average_w" in said
    assert "exit_code: 9" in said


TAKEN_BY_A_THREAD = '''
import signal, sys, threading
from dropscribe.bench.following import follow
command = """import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
open(sys.argv[1], "w")
signal.pause()"""
def meter():
    with open(sys.argv[1]):  # a fifo: open once the command has its handler
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        threading.Event().wait()
threading.Thread(target=meter, daemon=True).start()
sys.exit(follow([sys.executable, "-c", command, sys.argv[1]]).code)
'''


def test_a_signal_that_a_meters_thread_takes_is_passed_on_too(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    script = [sys.executable, "-c", TAKEN_BY_A_THREAD, str(tmp_path / "ready")]
    assert subprocess.run(script, check=False, timeout=60).returncode == 9


@on_linux
def test_json_goes_to_stdout_and_audio_is_measured_by_decoding_it(machine: dict[str, str]) -> None:
    from dropscribe import resources

    with resources.demo_samples() as folder:
        clip = min(folder.glob("*.wav"))
        command = bench_power("--json", "--audio", str(clip), "--", "true")
        done = subprocess.run(command, env=machine, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["kind"] == "power"
    assert 1 < found["summary"]["audio_seconds"] < 600


@on_linux
@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "name a command"),
        (["--quick", "true"], "name a command"),
        (["--audio", "x.wav", "--audio-seconds", "3", "true"], "exclude each other"),
        (["--plot", "x.gif", "true"], ".png"),
        (["--output", "/nowhere/x.json", "true"], "/nowhere"),
        (["--interval-ms", "0", "true"], "--interval-ms"),
        (["--audio", "/nowhere.wav", "true"], "/nowhere.wav"),
    ],
)
def test_wrong_usage_runs_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], word: str
) -> None:
    fake_nvml(monkeypatch)
    monkeypatch.setenv("DROPSCRIBE_DATABASE", str(tmp_path / "jobs.db"))
    monkeypatch.setattr(power, "follow", lambda *_, **__: pytest.fail("it ran"))
    result = CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, ["bench", "power", *arguments])
    assert result.exit_code in (1, 2)
    assert word in result.output + str(result.exception)


@on_linux
def test_a_machine_that_tells_no_power_says_what_is_missing(machine: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "fake" / "pynvml.py").write_text("raise ImportError('no module named pynvml')")
    if any(rapl.POWERCAP.glob("intel-rapl:*")):
        pytest.skip("this machine tells its processor's power")
    touched = tmp_path / "touched"
    done = subprocess.run(bench_power("touch", str(touched)), env=machine, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert 'pip install "dropscribe[bench]"' in done.stderr
    assert not touched.exists()

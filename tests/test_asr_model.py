"""Loading: every way a checkpoint can be wrong, said in one line with its remedy; every number in one dtype."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from asr_support import on_cpu, random_path, tiny, tiny_path
from dropscribe.asr import model as model_module
from dropscribe.asr.model import load, locate
from dropscribe.errors import ModelInvalid, ModelUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

on_cpu()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy that may be broken."""
    return Path(shutil.copytree(random_path("fp32"), tmp_path / "model"))


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content), "utf-8")


# --- what is wrong with it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["/no/such/folder", "./nothing", "~/nothing-here", "justaword", "a/b/c"])
def test_no_such_directory_says_what_to_give(name: str) -> None:
    with pytest.raises(ModelUnavailable, match=r"no such directory; give a directory .* or a hub id"):
        locate(name)


def test_a_file_is_not_a_model(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(ModelUnavailable, match="no such directory"):
        locate(str(file))


@pytest.mark.parametrize("gone", ["config.json", "preprocessor_config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(checkpoint: Path, gone: str) -> None:
    (checkpoint / gone).unlink()
    with pytest.raises(ModelInvalid, match=r"lacks .*" + gone.replace("model.", r"\*.") + r".*fetch the whole"):
        locate(str(checkpoint))


def test_another_kind_of_model_is_refused_by_name(checkpoint: Path) -> None:
    edit(checkpoint / "config.json", lambda c: c.update(model_type="whisper"))
    with pytest.raises(ModelInvalid, match="is a 'whisper', not a qwen3_asr; choose"):
        load(str(checkpoint))


def test_a_config_that_is_not_json_is_refused(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text("{", "utf-8")
    with pytest.raises(ModelInvalid, match="not JSON"):
        load(str(checkpoint))


def test_an_audio_token_the_tokenizer_does_not_have_is_refused(checkpoint: Path) -> None:
    """mlx-audio would leave the audio out without a word."""
    edit(checkpoint / "config.json", lambda c: c.update(audio_token_id=c["audio_token_id"] - 1))
    with pytest.raises(ModelInvalid, match=r"audio_token_id is \d+ but the tokenizer says \d+"):
        load(str(checkpoint))


@pytest.mark.parametrize(
    "tensor", ["model.layers.1.mlp.down_proj.weight", "audio_tower.proj2.bias", "model.norm.weight"]
)
def test_a_missing_tensor_is_refused(checkpoint: Path, tensor: str) -> None:
    weights = mx.load(str(checkpoint / "model.safetensors"))
    del weights[tensor]
    mx.eval(weights)
    mx.save_safetensors(str(checkpoint / "model.safetensors"), weights)
    with pytest.raises(ModelInvalid, match="cannot be loaded from"):
        load(str(checkpoint))


def test_a_truncated_weight_file_is_refused(checkpoint: Path) -> None:
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5000])
    with pytest.raises(ModelInvalid, match="fetch the checkpoint again"):
        load(str(checkpoint))


def test_a_tensor_of_another_shape_is_refused(checkpoint: Path) -> None:
    edit(checkpoint / "config.json", lambda c: c["text_config"].update(intermediate_size=512))
    with pytest.raises(ModelInvalid, match="cannot be loaded from"):
        load(str(checkpoint))


# --- the hub --------------------------------------------------------------------------------------------------------


def hub_attempt(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys\n"
        "from dropscribe.asr.model import locate\n"
        "from dropscribe.errors import ModelUnavailable\n"
        "try:\n    locate('somebody/qwen3-asr-that-is-not-here')\n"
        "except ModelUnavailable as error:\n    print(error); sys.exit(7)\n"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=clean | {"HF_HOME": str(tmp_path)} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("environment", "cause"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE forbids fetching it"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "the hub could not be reached"),
    ],
    ids=["offline", "unreachable"],
)
def test_a_hub_that_cannot_be_reached_names_both_remedies(
    tmp_path: Path, environment: dict[str, str], cause: str
) -> None:
    done = hub_attempt(tmp_path, **environment)
    assert done.returncode == 7, done.stderr
    assert f"is not on this machine and {cause}" in done.stdout
    assert "connect to the network once" in done.stdout
    assert "local directory" in done.stdout
    assert len(done.stdout.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_command_line_says_so_without_a_traceback(tmp_path: Path) -> None:
    sound = Path(__file__).parent / "data" / "heldout" / "clip001.flac"
    done = subprocess.run(
        [sys.executable, "-m", "dropscribe", "transcribe-batch", str(sound), "--model", "somebody/no-such-model"],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "somebody/no-such-model" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def snapshot(monkeypatch: pytest.MonkeyPatch, cached: Path | None, fetched: Path | Exception) -> list[bool]:
    """Pretend to be the hub; returns whether each call was one over the network."""
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    calls: list[bool] = []

    def download(_name: str, *, allow_patterns: list[str], local_files_only: bool = False) -> str:
        calls.append(not local_files_only)
        if local_files_only:
            if cached is None:
                raise LocalEntryNotFoundError("not cached")
            return str(cached)
        if isinstance(fetched, Exception):
            raise fetched
        return str(fetched)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return calls


def test_a_cached_model_loads_without_a_network_call(monkeypatch: pytest.MonkeyPatch, checkpoint: Path) -> None:
    calls = snapshot(monkeypatch, checkpoint, AssertionError("no network"))
    assert locate("somebody/model").revision == checkpoint.name
    assert calls == [False]


def test_a_half_fetched_model_is_fetched_on(monkeypatch: pytest.MonkeyPatch, checkpoint: Path, tmp_path: Path) -> None:
    half = Path(shutil.copytree(checkpoint, tmp_path / "half"))
    (half / "model.safetensors").unlink()
    calls = snapshot(monkeypatch, half, checkpoint)
    assert locate("somebody/model").path == checkpoint
    assert calls == [False, True]


def test_a_sharded_model_is_whole_only_with_every_shard(checkpoint: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    assert not model_module._is_whole(checkpoint)
    (checkpoint / "model-2.safetensors").touch()
    assert model_module._is_whole(checkpoint)


# --- what is loaded -------------------------------------------------------------------------------------------------


def dtypes(model: Any) -> set[mx.Dtype]:
    return {a.dtype for a in model.encoder.arrays() + model.decoder.arrays() if mx.issubdtype(a.dtype, mx.floating)}


@pytest.mark.parametrize(
    ("kind", "asked", "expected"),
    [
        ("fp32", "auto", mx.float32),
        ("bf16", "auto", mx.float32),
        ("bf16", "stored", mx.bfloat16),
        ("4-bit", "stored", mx.float32),
        ("4-bit bf16", "stored", mx.bfloat16),
        ("4-bit bf16", "auto", mx.float32),
    ],
)
def test_every_array_has_the_one_dtype(kind: str, asked: str, expected: mx.Dtype) -> None:
    model = load(str(random_path(kind)), dtype=asked)
    assert dtypes(model) == {expected} == {model.dtype}


def test_a_model_of_two_dtypes_is_refused(monkeypatch: pytest.MonkeyPatch, checkpoint: Path) -> None:
    from dropscribe.asr.layers import TextDecoder

    arrays = TextDecoder.arrays
    monkeypatch.setattr(TextDecoder, "arrays", lambda self: [*arrays(self), mx.zeros(1, mx.float16)])
    with pytest.raises(ModelInvalid, match=r"mixes .*float16.* where .*float32 was expected"):
        load(str(checkpoint))


def test_the_bundled_model_says_how_long_its_segments_may_be() -> None:
    assert tiny().max_segment_seconds == 30.0
    assert load(str(random_path("fp32"))).max_segment_seconds == 300.0


def test_a_directorys_revision_follows_its_bytes(checkpoint: Path) -> None:
    first = locate(str(checkpoint)).revision
    assert locate(str(checkpoint)).revision == first
    (checkpoint / "README.md").write_text("notes", "utf-8")
    assert locate(str(checkpoint)).revision == first
    edit(checkpoint / "generation_config.json", lambda c: c.update(max_segment_seconds=20))
    assert locate(str(checkpoint)).revision != first


def test_all_end_tokens_end_a_row() -> None:
    config = json.loads((tiny_path() / "generation_config.json").read_text("utf-8"))
    ends = config["eos_token_id"]
    assert tiny().eos >= set(ends if isinstance(ends, list) else [ends])

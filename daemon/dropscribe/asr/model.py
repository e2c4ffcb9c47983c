"""Find, load and check a checkpoint; choose layout and dtype for the device.

A local directory is taken as it is. A hub id is looked up in the local cache first, without a network call; only what
is not cached is fetched. Either way the revision is recorded: the hub's commit, or a digest of the directory's files.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dropscribe.asr import guards
from dropscribe.errors import ModelInvalid, ModelNotFetched, ModelUnavailable

if TYPE_CHECKING:
    import mlx.core as mx

    from dropscribe.asr.encoder import Encoder
    from dropscribe.asr.layers import TextDecoder
    from dropscribe.asr.prompt import PromptBuilder

DEFAULT_SEGMENT_SECONDS = 300.0
AUDIO_TOKENS_PER_SECOND = 13
PROMPT_ROOM = 512  # tokens for the prompt's own words and a context
_NEEDED = ("config.json", "preprocessor_config.json")
_FETCHED = ["*.json", "*.safetensors", "*.txt", "*.jinja"]


@dataclass(frozen=True)
class Located:
    """A checkpoint on disk."""

    name: str  # as the user wrote it
    path: Path
    revision: str


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded checkpoint, ready to run on one device."""

    name: str
    revision: str
    device: str  # e.g. "Device(gpu, 0)"
    encoder: Encoder
    decoder: TextDecoder
    prompts: PromptBuilder
    tokenizer: Any
    eos: frozenset[int]
    asr_text_id: int
    languages: tuple[str, ...]
    mel_bins: int
    max_segment_seconds: float
    max_positions: int

    @property
    def longest_seconds(self) -> float:
        """The longest segment whose prompt and token budget fit into the positions the model was made for."""
        room = self.max_positions - PROMPT_ROOM - guards.token_budget(0)
        return room / (guards.token_budget(1000) / 1000 + AUDIO_TOKENS_PER_SECOND)

    def positions_for(self, seconds: float) -> int:
        """The most positions a segment of ``seconds`` may come to: prompt, audio, and its whole token budget."""
        return PROMPT_ROOM + math.ceil(seconds * AUDIO_TOKENS_PER_SECOND) + guards.token_budget(seconds)

    @property
    def dtype(self) -> mx.Dtype:
        """Of hidden states, keys and values."""
        return self.decoder.dtype


def check(name: str) -> Path | None:
    """The directory ``name`` stands for, None for a hub id; nothing is fetched or read.

    Raises ``ModelUnavailable`` for what can be neither, ``ModelInvalid`` when files are missing.
    """
    local = Path(name).expanduser()
    if local.is_dir():
        _check_files(name, local)
        return local
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise ModelUnavailable(
            f"model {name!r}: no such directory; give a directory that holds config.json and *.safetensors, "
            "or a hub id such as mlx-community/Qwen3-ASR-0.6B-4bit"
        )
    return None


def locate(name: str, *, fetch: bool = True) -> Located:
    """The checkpoint ``name`` stands for, fetched if need be.

    Raises ``ModelUnavailable`` when it is neither on disk nor to be had (``ModelNotFetched`` where it was not to be
    fetched), ``ModelInvalid`` when files are missing.
    """
    local = check(name)
    if local is not None:
        return Located(name, local, _directory_digest(local))
    path = _from_hub(name, fetch=fetch)
    _check_files(name, path)
    return Located(name, path, path.name)


def _from_hub(name: str, *, fetch: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_OFFLINE
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        cached = Path(snapshot_download(name, allow_patterns=_FETCHED, local_files_only=True))
        if _is_whole(cached):
            return cached
    except LocalEntryNotFoundError:
        pass
    if not fetch:
        raise ModelNotFetched(f"model {name!r} is not on this machine yet; the first file to be transcribed fetches it")
    try:
        return Path(snapshot_download(name, allow_patterns=_FETCHED))
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        cause = f"the hub answered {status}" if status else "the hub could not be reached"
        if status in (401, 403, 404):
            cause = "the hub has no public model of that name"
    except Exception as error:  # the hub client lets its HTTP library's many errors through
        cause = f"the hub could not be reached ({type(error).__name__})"
        if HF_HUB_OFFLINE:
            cause = "HF_HUB_OFFLINE forbids fetching it"
    raise ModelUnavailable(
        f"model {name!r} is not on this machine and {cause}; connect to the network once so that it can be fetched, "
        "or set `model` (or --model) to a local directory that holds it"
    )


def _is_whole(path: Path) -> bool:
    """Whether a cached snapshot is complete: an interrupted download leaves some files out."""
    if not all((path / name).is_file() for name in _NEEDED):
        return False
    index = path / "model.safetensors.index.json"
    if index.is_file():
        return all((path / f).is_file() for f in set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    return any(path.glob("*.safetensors"))


def _check_files(name: str, path: Path) -> None:
    missing = [f for f in _NEEDED if not (path / f).is_file()]
    if not any(path.glob("*.safetensors")):
        missing.append("*.safetensors")
    if not (path / "tokenizer.json").is_file() and not (path / "vocab.json").is_file():
        missing.append("tokenizer.json")
    if missing:
        raise ModelInvalid(f"model {name!r}: {path} lacks {', '.join(missing)}; fetch the whole checkpoint")
    try:
        config = json.loads((path / "config.json").read_text("utf-8"))
    except ValueError as error:
        raise ModelInvalid(f"model {name!r}: config.json is not JSON ({error}); fetch it again") from None
    if config.get("model_type") != "qwen3_asr":
        raise ModelInvalid(
            f"model {name!r} is a {config.get('model_type')!r}, not a qwen3_asr; choose a Qwen3-ASR checkpoint"
        )


def _directory_digest(path: Path) -> str:
    """What a local directory's answer depends on, as 16 hex digits: its configuration and weights, byte for byte."""
    digest = hashlib.sha256()
    for file in sorted(p for p in path.iterdir() if p.suffix in {".json", ".safetensors", ".txt"}):
        with file.open("rb") as content:
            digest.update(f"{file.name}\0".encode() + hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:16]


def load(name: str, *, dtype: str = "auto") -> Model:
    """Load a Qwen3-ASR checkpoint (any size; dense, or with a decoder quantised to 4, 6 or 8 bits).

    ``dtype``: of activations and dense weights. ``"auto"`` is what the checkpoint holds on a GPU and float32 on the
    CPU, where MLX multiplies half precision three times slower; ``"stored"`` is what the checkpoint holds anywhere.
    Raises ``ModelUnavailable`` or ``ModelInvalid``.
    """
    located = locate(name)
    import mlx.core as mx
    from mlx.utils import tree_map

    on_cpu = mx.default_device().type == mx.DeviceType.cpu
    if on_cpu:
        # There MLX compiles by running g++ into a folder that all users share, and dies of SIGBUS on a file that a kill
        # left half-written, at every start from then on. Whole files took as long without.
        mx.disable_compile()
    model = _load_strictly(located)
    stored = model.model.norm.weight.dtype
    wanted = mx.float32 if dtype == "auto" and on_cpu else stored
    model.update(tree_map(lambda a: a.astype(wanted) if mx.issubdtype(a.dtype, mx.floating) else a, model.parameters()))
    return _arranged(located, model, str(mx.default_device()), wanted, on_cpu=on_cpu)


def _load_strictly(located: Located) -> Any:
    """mlx-audio's model with every tensor accounted for."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    from mlx_audio.stt.utils import load_model

    try:
        loaded = load_model(located.path, strict=True)
    except Exception as error:  # mlx-audio raises what json, safetensors, mlx and transformers raise
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelInvalid(
            f"model {located.name!r} cannot be loaded from {located.path}: {first[:300]}; fetch the checkpoint again"
        ) from error
    model = getattr(loaded, "_model", loaded)
    if type(model).__name__ != "Qwen3ASRModel":
        raise ModelInvalid(f"model {located.name!r} is a {type(model).__name__}; choose a Qwen3-ASR checkpoint")
    return model


def _arranged(located: Located, model: Any, device: str, wanted: mx.Dtype, *, on_cpu: bool) -> Model:
    import mlx.core as mx

    from dropscribe.asr.encoder import Encoder
    from dropscribe.asr.layers import TextDecoder
    from dropscribe.asr.prompt import ASR_TEXT, PromptBuilder

    tokenizer, config = model._tokenizer, model.config  # noqa: SLF001 - mlx-audio offers no public name
    pad, asr_text = (tokenizer.convert_tokens_to_ids(t) for t in ("<|audio_pad|>", ASR_TEXT))
    if pad != config.audio_token_id:
        raise ModelInvalid(
            f"model {located.name!r}: audio_token_id is {config.audio_token_id} but the tokenizer says {pad}; "
            "its config.json and tokenizer.json do not belong together"
        )
    encoder = Encoder(model.audio_tower, fixed_windows=not on_cpu, rows_first=on_cpu)
    decoder = TextDecoder.of(model, rows_first=on_cpu)
    mx.eval(encoder.arrays(), decoder.arrays())
    odd = {str(a.dtype) for a in encoder.arrays() + decoder.arrays() if mx.issubdtype(a.dtype, mx.floating)}
    if odd != {str(wanted)}:
        raise ModelInvalid(f"model {located.name!r} mixes {', '.join(sorted(odd))} where {wanted} was expected")
    extra = read_json(located.path / "generation_config.json")
    return Model(
        name=located.name,
        revision=located.revision,
        device=device,
        encoder=encoder,
        decoder=decoder,
        prompts=PromptBuilder(tokenizer, config.audio_token_id),
        tokenizer=tokenizer,
        eos=frozenset(model._eos_token_ids()),  # noqa: SLF001
        asr_text_id=asr_text,
        languages=tuple(config.support_languages or ()),
        mel_bins=config.audio_config.num_mel_bins,
        max_segment_seconds=float(extra.get("max_segment_seconds", DEFAULT_SEGMENT_SECONDS)),
        max_positions=config.text_config.max_position_embeddings,
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty where there is none or it is something else."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

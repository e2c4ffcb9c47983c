#!/usr/bin/env python
"""Golden data for the recognizer's tests, from transformers' own Qwen3-ASR (PyTorch) in float32.

Nothing of mlx or mlx-audio takes part: the weights go into ``transformers.Qwen3ASRForConditionalGeneration``, prompts
come from the bare tokenizer and tokens from ``generate()``. Install into an environment of its own (CPU wheels are
enough) and run from the repository root, in less than a minute on one core:

    pip install torch==2.13.0 transformers==5.24.0 numpy==2.4.6 soundfile==0.14.0 safetensors tokenizers
    python tools/oracle/make_golden.py daemon/dropscribe/demo/model tests/data/heldout tests/data/oracle

It writes into the output directory
  tokens.json   every row: how it was made, prompt token ids, generated token ids with the end token, text
  encoder.npz   projected encoder outputs, float32 [N, D], of the rows named in tokens.json under "encoder"
  README.md     versions, command, format
and exits 1, writing nothing, if a text differs from transcripts.tsv.

Differences of layout between an MLX checkpoint and transformers' classes, all handled in `load_model`:
  audio_tower.conv2d*.weight  [out, kh, kw, in] -> [out, in, kh, kw]
  audio_tower.proj1, proj2    -> multi_modal_projector.linear_1, linear_2
  model.*                     -> model.language_model.*; the head is tied to the embedding unless the checkpoint has one
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import tokenizers
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import (
    Qwen3ASRConfig,
    Qwen3ASREncoderConfig,
    Qwen3ASRForConditionalGeneration,
    Qwen3Config,
    WhisperFeatureExtractor,
)

SAMPLE_RATE = 16_000
CHUNK_FRAMES = 100  # mel frames a convolution chunk; the encoder class wants whole chunks
MAX_NEW_TOKENS = 256
CONTEXT = "Names: Kate, Janet, Diana, Zurich"

# name: (language, context, what ends the context). mlx-audio puts a line break after the context, and the tiny model
# was trained so; the chat template published with Qwen3-ASR puts none.
VARIANTS: dict[str, tuple[str | None, str, str]] = {
    "free": (None, "", ""),
    "english": ("English", "", ""),
    "context": (None, CONTEXT, "\n"),
    "context_english": ("English", CONTEXT, "\n"),
    "context_no_newline": (None, CONTEXT, ""),
}
ENCODED = ("clip003.flac", "clip011.flac", "clip018.flac", "short", "joined")


@dataclass(frozen=True)
class Model:
    """The network with what it needs around it."""

    network: Qwen3ASRForConditionalGeneration
    tokenizer: Tokenizer
    features: WhisperFeatureExtractor
    eos: list[int]


def load_model(folder: Path) -> Model:
    """Build the network from an unquantised MLX checkpoint directory, every weight as float32."""
    config = json.loads((folder / "config.json").read_text())
    if "quantization" in config:
        raise SystemExit(f"{folder} is quantised; the oracle needs plain weights")
    eos = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    network = Qwen3ASRForConditionalGeneration(
        Qwen3ASRConfig(
            audio_config=_encoder_config(config["audio_config"]),
            text_config=_text_config(config["text_config"]),
            audio_token_id=config["audio_token_id"],
            eos_token_id=eos,
            pad_token_id=config["pad_token_id"],
            tie_word_embeddings=config["text_config"]["tie_word_embeddings"],
        )
    )
    weights: dict[str, torch.Tensor] = {}
    for name, value in load_file(folder / "model.safetensors").items():
        weights[_torch_name(name)] = (value.permute(0, 3, 1, 2) if value.ndim == 4 else value).float().contiguous()
    weights.setdefault("lm_head.weight", weights["model.language_model.embed_tokens.weight"])
    network.load_state_dict(weights, strict=True)
    return Model(
        network=network.float().eval(),
        tokenizer=Tokenizer.from_file(str(folder / "tokenizer.json")),
        features=WhisperFeatureExtractor.from_pretrained(str(folder)),
        eos=eos if isinstance(eos, list) else [eos],
    )


def _encoder_config(audio: dict[str, Any]) -> Qwen3ASREncoderConfig:
    names = ("num_mel_bins", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "d_model", "output_dim")
    names += ("n_window", "n_window_infer", "downsample_hidden_size", "activation_function", "scale_embedding")
    return Qwen3ASREncoderConfig(**{name: audio[name] for name in names})


def _text_config(text: dict[str, Any]) -> Qwen3Config:
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim")
    names += ("num_key_value_heads", "rms_norm_eps", "tie_word_embeddings", "max_position_embeddings", "hidden_act")
    # Text positions are plain one-dimensional RoPE, whatever `rope_scaling` says of the multimodal sections.
    rope = {"rope_type": "default", "rope_theta": text["rope_theta"]}
    return Qwen3Config(**{name: text[name] for name in names}, rope_parameters=rope)


def _torch_name(name: str) -> str:
    for old, new in (("proj1.", "linear_1."), ("proj2.", "linear_2.")):
        if name.startswith(f"audio_tower.{old}"):
            return name.replace(f"audio_tower.{old}", f"model.multi_modal_projector.{new}")
    if name.startswith("audio_tower."):
        return f"model.{name}"
    if name.startswith("model."):
        return name.replace("model.", "model.language_model.", 1)
    return name


def log_mel(model: Model, samples: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-mel features [1, 128, T] and their mask [1, T], T filled up with 0.0 to whole chunks.

    Samples are first padded to 1.0 s. With torch installed the extractor would take torch's STFT; the numpy one is what
    runs beside MLX, so it is asked for by name and the encoder alone is what can differ.
    """
    samples = np.pad(samples, (0, max(0, SAMPLE_RATE - len(samples))))
    model.features._torch_extract_fbank_features = model.features._np_extract_fbank_features  # noqa: SLF001
    got = model.features(
        samples,
        sampling_rate=SAMPLE_RATE,
        padding=True,
        truncation=False,
        return_attention_mask=True,
        return_tensors="np",
    )
    fill = -got["input_features"].shape[-1] % CHUNK_FRAMES
    mel = np.pad(got["input_features"], ((0, 0), (0, 0), (0, fill)))
    mask = np.pad(got["attention_mask"], ((0, 0), (0, fill)))
    return torch.from_numpy(mel.astype(np.float32)), torch.from_numpy(mask.astype(np.int64))


def build_prompt(model: Model, audio_tokens: int, language: str | None, context: str) -> list[int]:
    """Token ids of the whole prompt; a forced language is the beginning of the answer."""
    text = (
        f"<|im_start|>system\n{context}<|im_end|>\n"
        f"<|im_start|>user\n<|audio_start|>{'<|audio_pad|>' * audio_tokens}<|audio_end|><|im_end|>\n"
        "<|im_start|>assistant\n" + (f"language {language}<asr_text>" if language else "")
    )
    return model.tokenizer.encode(text, add_special_tokens=False).ids


def run_row(
    model: Model, mel: torch.Tensor, mask: torch.Tensor, encoded: torch.Tensor, language: str | None, context: str
) -> dict[str, Any]:
    """Greedy decoding of one prompt; `margin` is the smallest lead of a chosen token over the next best, in logits."""
    prompt = build_prompt(model, len(encoded), language, context)
    ids = torch.tensor([prompt])
    out = model.network.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        input_features=mel,
        input_features_mask=mask,
        do_sample=False,
        max_new_tokens=MAX_NEW_TOKENS,
        return_dict_in_generate=True,
        output_logits=True,
    )
    tokens = out.sequences[0, len(prompt) :].tolist()
    best = torch.cat(out.logits).topk(2).values  # [steps, 2]
    text = model.tokenizer.decode(tokens, skip_special_tokens=True)
    return {
        "prompt": prompt,
        "tokens": tokens,
        "ended": tokens[-1] in model.eos,
        "margin": round(float((best[:, 0] - best[:, 1]).min()), 4),
        "text": text.split("<asr_text>")[-1].strip(),
    }


def sources(clips: Path) -> dict[str, np.ndarray]:
    """The clips by name, and three rows made of them or of nothing: float32 mono samples at 16 kHz."""
    found = {path.name: _read(path) for path in sorted(clips.glob("*.flac"))}
    if not found:
        raise SystemExit(f"no .flac files in {clips}")
    names = sorted(found)
    found["short"] = found[names[3]][: SAMPLE_RATE // 2]  # half a second: padded to 1.0 s
    found["joined"] = np.concatenate([found[names[0]], found[names[11]]])  # four attention windows
    found["silence"] = np.zeros(2 * SAMPLE_RATE, np.float32)
    return found


def _read(path: Path) -> np.ndarray:
    samples, rate = soundfile.read(path, dtype="float32")
    if rate != SAMPLE_RATE or samples.ndim != 1:
        raise SystemExit(f"{path} is not 16 kHz mono")
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(description="Write golden tokens and encoder outputs of Qwen3-ASR.")
    parser.add_argument("model", type=Path, help="unquantised MLX checkpoint directory")
    parser.add_argument("clips", type=Path, help="directory of .flac clips with transcripts.tsv")
    parser.add_argument("out", type=Path, help="output directory")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    model = load_model(args.model)
    with (args.clips / "transcripts.tsv").open(newline="") as file:
        expected = {row["file"]: row["text"] for row in csv.DictReader(file, delimiter="\t")}
    rows: list[dict[str, Any]] = []
    encoder: dict[str, np.ndarray] = {}
    wrong = 0
    for source, samples in sources(args.clips).items():
        mel, mask = log_mel(model, samples)
        with torch.inference_mode():
            encoded = model.network.get_audio_features(mel, mask).pooler_output  # [N, D]
            if source in ENCODED:
                encoder[source.removesuffix(".flac")] = encoded.numpy()
            for variant, (language, context, end) in VARIANTS.items():
                row = run_row(model, mel, mask, encoded, language, context + end)
                about = {"source": source, "variant": variant, "language": language, "context": context}
                rows.append(about | {"audio_tokens": len(encoded)} | row)
                if row["text"] != expected.get(source, row["text"]):
                    wrong += 1
                    print(f"{source} {variant}: {row['text']!r}, expected {expected[source]!r}", file=sys.stderr)
        print(f"{source}: {len(encoded)} positions, {rows[-1]['text']!r}")
    if wrong:
        print(f"{wrong} texts differ from transcripts.tsv; nothing written", file=sys.stderr)
        return 1
    _write(args.out, args.model, rows, encoder)
    return 0


def _write(out: Path, folder: Path, rows: list[dict[str, Any]], encoder: dict[str, np.ndarray]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    made = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "numpy": np.__version__,
        "soundfile": soundfile.__version__,
    }
    head = {
        "weights_sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        "dtype": "float32",
        "made_with": made,
        "encoder": sorted(encoder),
    }
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
    body = json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n{lines}\n]}}\n'
    (out / "tokens.json").write_text(body, encoding="utf-8")
    np.savez_compressed(out / "encoder.npz", **encoder)
    versions = ", ".join(f"{name} {version}" for name, version in made.items())
    (out / "README.md").write_text(README.format(versions=versions, rows=len(rows)), encoding="utf-8")


README = """# Golden data of the recognizer

What transformers' own Qwen3-ASR (PyTorch, float32, CPU, `generate()` with greedy choice) makes of the bundled tiny
model and the held-out clips. Nothing of MLX took part. Made by

    python tools/oracle/make_golden.py daemon/dropscribe/demo/model tests/data/heldout tests/data/oracle

with {versions}.
The docstring of the script says what to install.

`tokens.json` has {rows} rows under `rows`, one a line. `source` is a clip, or `short` (the first half second of
clip003, padded to 1.0 s as every shorter row is), `joined` (clip000 and clip011 end to end: four attention windows) or
`silence` (2 s of zeros). `variant` is one of

| variant | language | system text |
| --- | --- | --- |
| `free` | found by the model | none |
| `english` | forced: the prompt ends in `language English<asr_text>` | none |
| `context` | found by the model | `context` and a line break, as mlx-audio builds it |
| `context_english` | forced | `context` and a line break |
| `context_no_newline` | found by the model | `context` alone, as Qwen's published chat template builds it |

`prompt` are the exact prompt token ids, `tokens` the generated ones with the end token (`ended` says that there is
one), `margin` the smallest lead in logits of a chosen token over the next best: a row with a margin near zero may fall
otherwise in low precision. The texts of all clips in all variants equal `../heldout/transcripts.tsv`; the script
refuses to write otherwise.

`encoder.npz` has the encoder's projected outputs, float32 [positions, width], of the sources listed under `encoder`.
They were made from the numpy log-mel of `WhisperFeatureExtractor`. Another implementation agrees up to float32
rounding, not to the bit.
"""


if __name__ == "__main__":
    raise SystemExit(main())

#!/usr/bin/env python
"""Write a Qwen3-ASR model directory with random weights, for tests and measurements without a download.

    python tools/make_random_model.py out/tiny                             hidden 128, 2 layers, float32
    python tools/make_random_model.py out/q4 --bits 4 --dtype bfloat16     4-bit decoder, bfloat16 scales
    python tools/make_random_model.py out/06 --shape 0.6b --bits 4         the true 0.6B shape, Qwen's own token ids

From a test: ``build(tmp_path / "model", bits=4, seed=1)``. `mlx_audio.stt.load(path, strict=True)` takes the result; no
network is used. A model is a function of its arguments alone: every tensor has a numpy generator of its own, seeded
with its name.

Outputs vary with position, prompt and audio (see `_tensor`), and rows hardly ever end by themselves, because the
end token is one of many: such a model tests budgets, guards and equality of tokens, never the text.
"""

from __future__ import annotations

import argparse
import json
import shutil
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

if TYPE_CHECKING:
    from collections.abc import Iterator

# name: text (hidden, intermediate, layers, heads, KV heads, head width), audio (width, layers, heads, ffn, channels)
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "tiny": ((128, 256, 2, 4, 2, 32), (64, 2, 2, 128, 16)),
    "small": ((512, 1536, 8, 8, 4, 64), (128, 2, 2, 256, 32)),
    "mid": ((1024, 3072, 4, 16, 8, 128), (128, 2, 2, 256, 32)),
    "0.6b": ((1024, 3072, 28, 16, 8, 128), (896, 18, 14, 3584, 480)),
    "1.7b": ((2048, 6144, 28, 16, 8, 128), (1024, 24, 16, 4096, 480)),
}
TEXT_KEYS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
TEXT_KEYS += ("head_dim",)
AUDIO_KEYS = ("d_model", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "downsample_hidden_size")
DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}

# Added tokens with the ids of the published checkpoints. Small models carry the same names behind a small vocabulary.
QWEN_IDS = {
    "<|endoftext|>": 151643,
    "<|im_start|>": 151644,
    "<|im_end|>": 151645,
    "<|audio_start|>": 151669,
    "<|audio_end|>": 151670,
    "<|audio_pad|>": 151676,
    "<asr_text>": 151704,
}
QWEN_VOCABULARY = 151936
ORDINARY = "<asr_text>"  # an added token that is not special: it must survive decoding without the special ones
SPLIT = r"'(?:s|t|re|ve|m|ll|d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SENTENCES = (
    "language English",
    "language Chinese",
    "language None",
    "system user assistant",
    "a file dropped into the folder is transcribed beside it, and the next one follows at once",
    "one two three four five six seven eight nine ten eleven twelve",
    "每个文件 都有 自己的 文本",
)


def build(
    out: Path | str,
    shape: str = "tiny",
    *,
    dtype: str = "float32",
    bits: int = 0,
    group_size: int = 64,
    seed: int = 0,
    real_ids: bool | None = None,
    gain: float = 16.0,
) -> Path:
    """Write a model directory and return its path; what was there before is removed.

    Args:
        out: the directory to write.
        shape: a key of `SHAPES`.
        dtype: of all plain tensors and of the scales of quantised ones: float32, float16 or bfloat16.
        bits: 0 leaves the decoder plain; 2, 3, 4, 5, 6 or 8 quantises its matrices in groups of `group_size` columns.
        seed: another seed is another model.
        real_ids: Qwen's own token ids in a vocabulary of 151,936; None: in the shapes of published models only.
        gain: scale of what is written to the residual stream against what is already there.

    Raises:
        KeyError: an unknown shape or dtype.
    """
    out = Path(out)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    if real_ids is None:
        real_ids = shape in ("0.6b", "1.7b")
    ids, vocabulary = _write_tokenizer(out, real_ids=real_ids)
    config = _config(shape, ids, vocabulary)
    if bits:
        config["quantization"] = {"group_size": group_size, "bits": bits, "mode": "affine"}
        config["quantization_config"] = config["quantization"]
    weights: dict[str, mx.array] = {}
    for name, size in _tensor_shapes(config):
        value = _tensor(name, size, seed, gain).astype(DTYPES[dtype])
        # As published checkpoints do: the audio tower and the norms stay plain.
        if bits and name.startswith("model.") and value.ndim == 2:
            stem = name.removesuffix("weight")
            packed, scales, biases = mx.quantize(value, group_size=group_size, bits=bits)
            weights |= {f"{stem}weight": packed, f"{stem}scales": scales, f"{stem}biases": biases}
        else:
            weights[name] = value
        mx.eval(weights)  # one tensor at a time: the plain form of a large model never exists as a whole
    mx.save_safetensors(str(out / "model.safetensors"), weights, metadata={"format": "mlx"})
    _write_json(out / "config.json", config)
    ends = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    _write_json(out / "generation_config.json", {"do_sample": False, "eos_token_id": ends})
    _write_json(out / "preprocessor_config.json", _PREPROCESSOR)
    return out


_PREPROCESSOR = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": 128,
    "sampling_rate": 16000,
    "n_fft": 400,
    "hop_length": 160,
    "chunk_length": 30,
    "n_samples": 480000,
    "nb_max_frames": 3000,
    "dither": 0.0,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
}


def _config(shape: str, ids: dict[str, int], vocabulary: int) -> dict[str, Any]:
    text, audio = SHAPES[shape]
    return {
        "architectures": ["Qwen3ASRForConditionalGeneration"],
        "model_type": "qwen3_asr",
        "support_languages": ["Chinese", "English", "French", "German"],
        "audio_token_id": ids["<|audio_pad|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "audio_end_token_id": ids["<|audio_end|>"],
        "audio_config": {
            # Some versions of transformers refuse the "qwen3_asr_audio_encoder" of the published files.
            "model_type": "qwen3_asr_encoder",
            **dict(zip(AUDIO_KEYS, audio, strict=True)),
            "output_dim": text[0],
            "num_mel_bins": 128,
            "n_window": 50,
            "n_window_infer": 800,
            "conv_chunksize": 500,
            "max_source_positions": 1500,
            "activation_function": "gelu",
            "scale_embedding": False,
        },
        "text_config": {
            "model_type": "qwen3",
            **dict(zip(TEXT_KEYS, text, strict=True)),
            "vocab_size": vocabulary,
            "hidden_act": "silu",
            "max_position_embeddings": 65536,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "rope_scaling": None,
            "tie_word_embeddings": True,
            "attention_bias": False,
        },
    }


def _tensor_shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all tensors, as mlx-audio's module declares them (its lazy values are never computed)."""
    from mlx_audio.stt.models.qwen3_asr import ModelConfig, Qwen3ASRModel

    module = Qwen3ASRModel(ModelConfig.from_dict(config))
    for name, value in sorted(tree_flatten(module.parameters())):
        yield name, value.shape


def _tensor(name: str, size: tuple[int, ...], seed: int, gain: float) -> mx.array:
    """One tensor, float32.

    With a tied head and weights of equal size everywhere, the embedding of the last token outweighs all that the layers
    add: the model repeats that token for ever. So what the layers write to the residual stream is scaled up by `gain`,
    and queries and keys are sharpened, which makes the choice depend on position and audio.
    """
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    decoder = name.startswith("model.")
    if len(size) == 1:
        if name.endswith("bias"):
            return mx.array(0.1 * rng.standard_normal(size, np.float32))
        return mx.full(size, 1.8 if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0)
    scale = 1.0 / np.sqrt(np.prod(size[1:]))
    if decoder and name.endswith(("o_proj.weight", "down_proj.weight")):
        scale *= gain
    elif decoder and name.endswith(("q_proj.weight", "k_proj.weight")):
        scale *= 2.0
    values = rng.standard_normal(size, np.float32)
    values *= np.float32(scale)
    return mx.array(values)


def _write_tokenizer(out: Path, *, real_ids: bool) -> tuple[dict[str, int], int]:
    """Write a byte-level BPE trained on a few sentences; return the ids of the added tokens and the vocabulary size."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=384, min_frequency=1, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    content = json.loads(tokenizer.to_str())
    vocabulary: dict[str, int] = content["model"]["vocab"]
    if real_ids:
        ids = dict(QWEN_IDS)
        # Ids without a hole, or the tokenizer would move the added tokens down.
        first = QWEN_IDS["<|endoftext|>"]
        vocabulary |= {f"<unused{index}>": index for index in range(len(vocabulary), first)}
        names = {index: name for name, index in ids.items()}
        added = [names.get(index, f"<|reserved{index}|>") for index in range(first, max(names) + 1)]
        size = QWEN_VOCABULARY
    else:
        ids = {name: len(vocabulary) + place for place, name in enumerate(QWEN_IDS)}
        added = list(ids)
        size = -(-(len(vocabulary) + len(added)) // 64) * 64
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    content["added_tokens"] = [
        {"id": index, "content": name, **flags, "special": name != ORDINARY}
        for index, name in enumerate(added, len(vocabulary))
    ]
    _write_json(out / "tokenizer.json", content)
    _write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": 65536,
            "clean_up_tokenization_spaces": False,
            "bos_token": None,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "unk_token": None,
        },
    )
    if real_ids:
        # Other programs that take these ids for granted read the older pair of files.
        _write_json(out / "vocab.json", vocabulary)
        merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in content["model"]["merges"]]
        (out / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
    return ids, size


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a Qwen3-ASR model directory with random weights.")
    parser.add_argument("out", type=Path, help="directory to write; what is there is removed")
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--bits", type=int, choices=(0, 2, 3, 4, 5, 6, 8), default=0, help="0: no quantisation")
    parser.add_argument("--group-size", type=int, choices=(32, 64, 128), default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gain", type=float, default=16.0, help="scale of what is written to the residual stream")
    parser.add_argument("--real-ids", action="store_true", default=None, help="Qwen's token ids (always at 0.6b, 1.7b)")
    options = vars(parser.parse_args())
    path = build(options.pop("out"), options.pop("shape"), **options)
    size = (path / "model.safetensors").stat().st_size
    print(f"{path}: {size / 1e6:.1f} MB of weights")


if __name__ == "__main__":
    main()

"""Turns a training checkpoint into a folder that mlx-audio loads (`mlx_audio.stt.load(folder)`).

convert.py CKPT.safetensors tokenizer.json OUT_DIR [--dtype float16]
"""

import argparse
import json
import shutil
from pathlib import Path

import mlx.core as mx
from config import CONFIG


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("ckpt")
    ap.add_argument("tokenizer")
    ap.add_argument("out", type=Path)
    ap.add_argument("--dtype", default="float16", choices=["float16", "bfloat16", "float32"])
    args = ap.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    w = {}
    for k, v in mx.load(args.ckpt).items():
        if k.startswith("ctc_head"):
            continue
        # MLX convolutions are channels-last
        x = v.transpose(0, 2, 3, 1) if "conv2d" in k and v.ndim == 4 else v
        w[k] = x.astype(getattr(mx, args.dtype))
    mx.save_safetensors(str(args.out / "model.safetensors"), w, metadata={"format": "mlx"})

    def dump(name, x):
        (args.out / name).write_text(json.dumps(x, indent=2) + "\n")

    tok = json.loads(Path(args.tokenizer).read_text())
    ids = {t["content"]: t["id"] for t in tok["added_tokens"]}
    cfg = dict(CONFIG)
    cfg.update(
        audio_token_id=ids["<|audio_pad|>"],
        audio_start_token_id=ids["<|audio_start|>"],
        audio_end_token_id=ids["<|audio_end|>"],
        eos_token_id=ids["<|im_end|>"],
        pad_token_id=ids["<|endoftext|>"],
        dtype=args.dtype,
    )
    dump("config.json", cfg)
    dump(
        "generation_config.json",
        {
            "do_sample": False,
            "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
            "pad_token_id": ids["<|endoftext|>"],
            "max_segment_seconds": 30,  # read by dropscribe; nothing over 64 s was trained on
        },
    )
    dump(
        "preprocessor_config.json",
        {
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
        },
    )
    shutil.copy(args.tokenizer, args.out / "tokenizer.json")
    dump(
        "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": 8192,
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "bos_token": None,
            "unk_token": None,
            "added_tokens_decoder": {
                str(t["id"]): {k: t[k] for k in ("content", "lstrip", "normalized", "rstrip", "single_word", "special")}
                for t in tok["added_tokens"]
            },
        },
    )
    n = sum(v.size for v in w.values())
    print(f"{n:,} parameters, {sum(f.stat().st_size for f in args.out.iterdir()):,} bytes in {args.out}")


if __name__ == "__main__":
    main()

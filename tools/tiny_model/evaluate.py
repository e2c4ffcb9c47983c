"""Word error rate of a model folder through mlx_audio.stt (load + generate), on the CPU or Apple GPU.

evaluate.py MODEL clips DIR            # a make_speech.py test set (transcripts.tsv)
evaluate.py MODEL noise                # silence and noise must give no text
evaluate.py MODEL prompts DIR TXT.gz   # Asterisk core sounds and their transcripts (information only)
evaluate.py MODEL digits DIR           # free-spoken-digit recordings, <digit>_<speaker>_<n>.wav (information only)
"""

import argparse
import gzip
import json
import random
import re
import time
from pathlib import Path

import numpy as np
import soundfile as sf
from scipy.signal import resample_poly

ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
MAX_TOKENS = 1200


def words(s):
    s = s.lower().replace("-", " ")
    s = re.sub(r"\d", lambda m: " " + ONES[int(m.group())] + " ", s)
    return re.sub(r"[^a-z' ]+", " ", s).split()


def edits(a, b):
    d = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        p, d[0] = d[0], i
        for j, y in enumerate(b, 1):
            p, d[j] = d[j], min(d[j] + 1, d[j - 1] + 1, p + (x != y))
    return d[-1]


def audio(path):
    y, sr = sf.read(path, dtype="float32")
    if y.ndim > 1:
        y = y.mean(1)
    return (
        y if sr == 16000 else resample_poly(y, 16000 // np.gcd(sr, 16000), sr // np.gcd(sr, 16000)).astype(np.float32)
    )


def score(model, items, language=None, show=12, limit=200):
    """items: (name, group, samples, text)."""
    err = tot = bad = longest = exact = 0
    groups, worst, sec, t0 = {}, [], 0.0, time.time()
    for name, group, y, text in items:
        r = model.generate(y, language=language, max_tokens=MAX_TOKENS)
        ref, hyp = words(text), words(r.text)
        e = edits(ref, hyp)
        err, tot, sec = err + e, tot + len(ref), sec + len(y) / 16000
        exact += r.text.strip() == text
        longest = max(longest, r.generation_tokens)
        bad += r.generation_tokens >= limit
        g = groups.setdefault(group, [0, 0])
        g[0] += e
        g[1] += len(ref)
        if e:
            worst.append((e, name, group, text, r.text))
    dt = time.time() - t0
    res = {
        "clips": len(items),
        "words": tot,
        "wer_percent": round(100 * err / max(1, tot), 2),
        "exact_text_percent": round(100 * exact / max(1, len(items)), 1),
        "most_tokens": longest,
        f"clips_over_{limit}_tokens": bad,
        "audio_seconds": round(sec),
        "seconds_per_audio_second": round(dt / sec, 3),
    }
    print(json.dumps(res))
    print({k: round(100 * a / b, 1) for k, (a, b) in sorted(groups.items())})
    for w in sorted(worst, key=lambda w: -w[0])[:show]:
        print(*w, sep=" | ")
    return res


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("model")
    ap.add_argument("what", choices=["clips", "noise", "prompts", "digits"])
    ap.add_argument("paths", nargs="*")
    ap.add_argument("--language")
    ap.add_argument("--count", type=int, default=0)
    ap.add_argument("--limit", type=int, default=200)
    ap.add_argument("--show", type=int, default=12)
    args = ap.parse_args()
    from mlx_audio.stt import load

    model = load(args.model)
    if args.what == "clips":
        d = Path(args.paths[0])
        rows = [line.split("\t") for line in (d / "transcripts.tsv").read_text().splitlines()[1:]]
        if args.count:
            rows = rows[: args.count]
        items = [(f, re.split(r"[+]", v)[0], audio(d / f), t) for f, v, _, t in rows]
        score(model, items, args.language, args.show, args.limit)
    elif args.what == "noise":
        rng = np.random.default_rng(0)
        bad = 0
        for sec in (1, 2.5, 5, 12, 30):
            n = int(sec * 16000)
            white = rng.normal(size=n)
            pink = np.fft.irfft(np.fft.rfft(white) / np.sqrt(np.arange(1, n // 2 + 2)), n)
            brown = np.cumsum(white) - np.linspace(0, np.sum(white), n)
            hum = np.sin(2 * np.pi * 60 * np.arange(n) / 16000)
            for kind, x in (("silence", white * 0), ("white", white), ("pink", pink), ("brown", brown), ("hum", hum)):
                unit = x / (np.abs(x).max() + 1e-9)
                for level in (0.003, 0.03, 0.3):
                    for language in (None, "English"):
                        r = model.generate((unit * level).astype(np.float32), language=language, max_tokens=MAX_TOKENS)
                        if r.text.strip() or (language is None and r.language != ["None"]):
                            bad += 1
                            print(kind, sec, level, language, repr(r.text[:80]), r.language)
        print("clips with text:", bad, "of", 5 * 5 * 3 * 2)
    elif args.what == "prompts":
        d, txt = args.paths
        items = []
        for line in gzip.decompress(Path(txt).read_bytes()).decode("utf-8", "ignore").splitlines():
            k, _, t = line.strip().partition(": ")
            p = Path(d) / (k + ".wav")
            if t and "[" not in t and 2 <= len(words(t)) <= 30 and p.exists():
                items.append((k, "human", audio(p), t))
        random.Random(0).shuffle(items)
        score(model, items[: args.count or 100], args.language, args.show)
    else:
        files = sorted(Path(args.paths[0]).glob("*.wav"))
        random.Random(0).shuffle(files)
        files = files[: args.count or 100]
        ok = 0
        for p in files:
            y = audio(p)
            y = np.concatenate([np.zeros(4000, np.float32), y, np.zeros(4000, np.float32)])
            ok += words(model.generate(y, language=args.language, max_tokens=60).text) == [ONES[int(p.name[0])]]
        print(json.dumps({"digit_clips": len(files), "digit_accuracy_percent": round(100 * ok / len(files), 1)}))


if __name__ == "__main__":
    main()

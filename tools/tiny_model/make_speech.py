"""Synthetic speech: text from grammar.py spoken by espeak-ng, flite and festival.

  make_speech.py shards OUT_DIR --workers 12 --max-hours 400   # endless training shards
  make_speech.py testset OUT_DIR --count 200                   # held-out clips (FLAC + transcripts.tsv)

A shard is an .npz with 16 kHz int16 audio and the token ids of each clip's text.
TTS_ROOT may name a folder with private copies of the speech programs
(bin/, lib/, espeak-ng-data/); by default the installed ones are used.
"""

import argparse
import os
import random
import subprocess
import tempfile
import time
from multiprocessing import Process
from pathlib import Path

import numpy as np
from grammar import Grammar, load_kjv, norm_words, split_of
from scipy.signal import resample_poly

SR = 16000
ROOT = os.environ.get("TTS_ROOT")
ENV = dict(os.environ)
if ROOT:
    ENV["LD_LIBRARY_PATH"] = f"{ROOT}/lib"
    ENV["ESPEAK_DATA_PATH"] = ROOT
BIN = f"{ROOT}/bin/" if ROOT else ""

ESPEAK_ACCENTS = (
    ["en-us"] * 6 + ["en-gb"] * 4 + ["en-gb-scotland"] * 2 + ["en-gb-x-rp", "en-gb-x-gbclan", "en-029", "en-us-nyc"]
)
ESPEAK_MAIN = ["", *(f"+m{i}" for i in range(1, 8)), *(f"+f{i}" for i in range(1, 6))]
ESPEAK_MORE = [
    "+" + v
    for v in str.split("""Alex Alicia Andrea Andy Annie Denis Diogo Gene Gene2 Hugo Jacky Lee Marco Mario
Michael Mike Storm adam anika announcer antonio aunty belinda benjamin boris caleb david ed edward gustave iven iven2
john klatt klatt2 klatt3 klatt4 linda m8 max miguel norbert pablo paul pedro quincy rob robert steph steph2 travis
victor zac""")
]
FLITE = ["slt", "slt", "slt", "rms", "rms", "rms", "awb", "awb", "awb", "kal16", "kal"]
FESTIVAL = ["cmu_us_slt_arctic_hts", "kal_diphone", "ked_diphone"]


def parse_wav(data):
    """Samples and rate of a mono 16-bit WAV, also one with a streaming header."""
    rate = int.from_bytes(data[24:28], "little")
    at = data.find(b"data") + 8
    pcm = data[at:]
    return np.frombuffer(pcm[: len(pcm) // 2 * 2], dtype="<i2"), rate


def to16k(x, rate):
    if rate == SR:
        y = x.astype(np.float32)
    else:
        g = np.gcd(SR, rate)
        y = resample_poly(x.astype(np.float32), SR // g, rate // g)
    return y


def trim(y, keep=0.04):
    """Cut the silence at both ends, leaving `keep` seconds."""
    f = 160
    n = len(y) // f
    if n < 3:
        return None
    e = np.abs(y[: n * f]).reshape(n, f).max(1)
    on = np.nonzero(e > max(60.0, 0.01 * e.max()))[0]
    if len(on) == 0:
        return None
    k = int(keep * SR)
    y = y[max(0, on[0] * f - k) : (on[-1] + 1) * f + k]
    peak = np.abs(y).max()
    return (y * (0.8 * 32767 / max(peak, 1.0))).astype(np.int16)


def spoken(cmd, timeout=60):
    """What a speech program writes to stdout. One that fails wrote nothing, and its clip is left out."""
    run = subprocess.run(cmd, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=timeout, check=False)
    return run.stdout


def speak_espeak(r, text, main_only=False):
    v = r.choice(ESPEAK_ACCENTS) + r.choice(ESPEAK_MAIN if main_only or r.random() < 0.6 else ESPEAK_MORE)
    cmd = [
        BIN + "espeak-ng",
        "-v",
        v,
        "-s",
        str(r.randint(125, 205)),
        "-p",
        str(r.randint(20, 80)),
        "-g",
        str(r.choice([0, 0, 0, 1, 2, 4])),
        "--stdout",
        text,
    ]
    return parse_wav(spoken(cmd)), v


def speak_flite(r, text, tmp):
    v = r.choice(FLITE)
    out = f"{tmp}/f.wav"
    cmd = [BIN + "flite", "-voice", v, "--setf", f"duration_stretch={r.uniform(0.82, 1.25):.2f}"]
    if v.startswith("kal"):
        cmd += ["--setf", f"int_f0_target_mean={r.randint(80, 150)}"]
    spoken([*cmd, "-t", text, "-o", out])
    data = Path(out).read_bytes()
    return parse_wav(data), v


def speak_festival(r, texts, tmp):
    """One festival process speaks a whole list (its start-up is slow)."""
    v = r.choice(FESTIVAL)
    scm = [f"(voice_{v})"]
    for i, t in enumerate(texts):
        scm.append(f"(Parameter.set 'Duration_Stretch {r.uniform(0.85, 1.2):.2f})")
        scm.append(f'(utt.save.wave (utt.synth (Utterance Text "{t}")) "{tmp}/{i}.wav" \'riff)')
    Path(f"{tmp}/x.scm").write_text("\n".join(scm))
    spoken([BIN + "festival", "-b", f"{tmp}/x.scm"], timeout=300)
    out = []
    for i in range(len(texts)):
        p = Path(f"{tmp}/{i}.wav")
        out.append(parse_wav(p.read_bytes()) if p.exists() else None)
        p.unlink(missing_ok=True)
    return out, v


def make_clips(r, texts, engine, tmp, main_only=False):
    """-> list of (text, voice, int16 audio)."""
    res = []
    if engine == "festival":
        wavs, v = speak_festival(r, texts, tmp)
        res = [(t, v, w) for t, w in zip(texts, wavs, strict=True) if w is not None]
    else:
        for t in texts:
            try:
                w, v = speak_espeak(r, t, main_only) if engine == "espeak" else speak_flite(r, t, tmp)
            except Exception:
                continue
            res.append((t, v, w))
    out = []
    for t, v, (x, rate) in res:
        if len(x) < 800:
            continue
        y = trim(to16k(x, rate))
        if y is not None and len(y) < 22 * SR:
            out.append((t, f"{engine}:{v}", y))
    return out


def draw_texts(g, split, count):
    out = []
    while len(out) < count:
        s = g.sentence()
        if len(s) < 170 and split_of(s) == split and (split == "train" or len(norm_words(s)) > 3):
            out.append(s)
    return out


def worker(k, out, args):
    from tokenizers import Tokenizer

    tok = Tokenizer.from_file(args.tokenizer)
    r = random.Random(args.seed * 1000 + k)
    g = Grammar(r, Path(args.words).read_text().split(), load_kjv(args.kjv))
    tmp = tempfile.mkdtemp(prefix="speech")
    i = 0
    while not (out / "STOP").exists():
        engine = r.choices(["espeak", "flite", "festival"], [0.42, 0.40, 0.18])[0]
        clips = make_clips(r, draw_texts(g, "train", args.per_shard), engine, tmp)
        if not clips:
            continue
        ids = [tok.encode(t, add_special_tokens=False).ids for t, _, _ in clips]
        np.savez(
            out / f"tmp_{k}.npz",
            audio=np.concatenate([a for _, _, a in clips]),
            lens=np.array([len(a) for _, _, a in clips], np.int64),
            ids=np.concatenate([np.array(x, np.int16) for x in ids]),
            idlens=np.array([len(x) for x in ids], np.int64),
        )
        os.rename(out / f"tmp_{k}.npz", out / f"shard_{time.time():.3f}_{k}_{i}.npz")
        i += 1
        while len(list(out.glob("shard_*.npz"))) > args.max_waiting and not (out / "STOP").exists():
            time.sleep(1)


def testset(out, args):
    """Held-out clips: every sentence's hash is in the test split."""
    import soundfile as sf

    r = random.Random(args.seed)
    g = Grammar(r, Path(args.words).read_text().split(), load_kjv(args.kjv))
    tmp = tempfile.mkdtemp(prefix="speech")
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    pool = draw_texts(g, "test", args.count * 3)
    if args.templates_only:
        pool = []
        while len(pool) < args.count * 3:
            s = g.template()
            if split_of(s) == "test" and len(norm_words(s)) > 3 and len(s) < 170:
                pool.append(s)
    i = 0
    while len(rows) < args.count:
        n = r.choice([1, 1, 1, 2, 3]) if not args.long else r.randint(8, 12)
        texts = [pool[(i + j) % len(pool)] for j in range(n)]
        i += n
        engine = r.choices(["espeak", "flite", "festival"], [0.5, 0.32, 0.18])[0]
        state = r.getrandbits(32)
        clips = []
        for t in texts:  # the same random state picks the same voice for each sentence of a clip
            clips += make_clips(random.Random(state), [t], engine, tmp, main_only=True)
        if len(clips) != n:
            continue
        parts = [np.zeros(int(r.uniform(0.1, 0.4) * SR), np.int16)]
        for _, _, a in clips:
            parts += [a, np.zeros(int(r.uniform(0.25, 0.9) * SR), np.int16)]
        y = (np.concatenate(parts).astype(np.float32) / 32768) * r.uniform(0.3, 1.0)
        y = y + np.random.default_rng(state).normal(0, 10 ** r.uniform(-4.5, -3.2), len(y)).astype(np.float32)
        dur = len(y) / SR
        if not args.long and not 1.0 <= dur <= args.max_seconds:
            continue
        name = f"clip{len(rows):03d}.flac"
        sf.write(out / name, y, SR, subtype="PCM_16")
        rows.append((name, clips[0][1], f"{dur:.2f}", " ".join(texts)))
    with open(out / "transcripts.tsv", "w") as f:
        f.write("file\tvoice\tseconds\ttext\n")
        f.writelines("\t".join(row) + "\n" for row in rows)
    print(f"{len(rows)} clips in {out}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("what", choices=["shards", "testset"])
    ap.add_argument("out", type=Path)
    ap.add_argument("--workers", type=int, default=2)
    ap.add_argument("--per-shard", type=int, default=48)
    ap.add_argument("--max-waiting", type=int, default=400)
    ap.add_argument("--count", type=int, default=200)
    ap.add_argument("--max-seconds", type=float, default=20)
    ap.add_argument("--long", action="store_true", help="clips of 8 to 12 sentences (30-60 s)")
    ap.add_argument("--templates-only", action="store_true")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--words", default="words.txt")
    ap.add_argument("--kjv", default="kjv.txt")
    ap.add_argument("--tokenizer", default="tokenizer.json")
    args = ap.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.what == "testset":
        testset(args.out, args)
        return
    ps = [Process(target=worker, args=(k, args.out, args)) for k in range(args.workers)]
    for p in ps:
        p.start()
    for p in ps:
        p.join()


if __name__ == "__main__":
    main()

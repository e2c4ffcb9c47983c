"""Trains the tiny Qwen3-ASR model from scratch on the shards that make_speech.py writes.

  train.py --shards DIR --tokenizer tokenizer.json --out CKPT_DIR --seconds 1200

The clips live in one int16 tensor on the GPU, which grows while make_speech.py works; every batch is composed,
augmented and turned into log-mel features there.  Batches hold rows of 1 to ~20 clips joined with
pauses (4 to 64 s).  The loss is next-token cross-entropy of the decoder plus CTC on the encoder (the CTC head
is dropped afterwards).  The learning rate follows the share of --seconds that has passed.
"""

import argparse
import math
import multiprocessing as mp
import os
import random
import threading
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from model import Qwen3ASR, tokens_of
from safetensors.torch import load_file, save_file

SR = 16000
BUCKETS = [4, 8, 16, 32, 64]  # seconds


# ---------------------------------------------------------------- batches (own processes)
def batcher(meta_q, out_q, stage, args, seed):
    from tokenizers import Tokenizer

    rng = np.random.default_rng(seed)
    r = random.Random(seed)
    tok = Tokenizer.from_file(args.tokenizer)

    def enc(s):
        return tok.encode(s, add_special_tokens=False).ids

    ids_of = {s: tok.token_to_id(s) for s in ("<|im_end|>", "<|audio_pad|>")}
    P_SYS, P_USER = enc("<|im_start|>system\n"), enc("<|im_end|>\n<|im_start|>user\n<|audio_start|>")
    P_END = enc("<|audio_end|><|im_end|>\n<|im_start|>assistant\n")
    ENG, NON = enc("language English<asr_text>"), enc("language None<asr_text>")
    words = Path(args.words).read_text().split()
    off, ln, ids = [], [], []

    def pull(block):
        try:
            while True:
                o, lens, shard_ids = meta_q.get(block)
                block = False
                for n, x in zip(lens, shard_ids, strict=True):
                    off.append(o)
                    ln.append(int(n))
                    ids.append(x)
                    o += int(n)
        except Exception:
            pass

    pull(True)
    while True:
        pull(False)
        p = stage.value
        w = [0.8, 0.2, 0, 0, 0] if p < 0.04 else [0.45, 0.3, 0.25, 0, 0] if p < 0.12 else [0.3, 0.27, 0.23, 0.12, 0.08]
        sec = r.choices(BUCKETS, w)[0]
        T = sec * SR
        B = max(2, int(args.batch_seconds / sec))
        rows = []
        for _ in range(B):
            items, text = [], []  # items: start, offset, length, speed, gain
            lead = int(r.choice([0.0, 0.1, 0.3, 0.6]) * r.random() * SR)
            end = lead
            if r.random() >= 0.04:
                want = T * (1.0 if sec == 4 else r.uniform(0.4, 1.0))
                same = r.random() < 0.6
                speed = 1.0 if r.random() < 0.4 else math.exp(r.uniform(-0.17, 0.17))
                j = r.randrange(len(off))
                tries = 0
                while tries < 4:
                    f = speed if same else (1.0 if r.random() < 0.4 else math.exp(r.uniform(-0.17, 0.17)))
                    n = int((ln[j] - 2) / f)
                    if end + n <= min(T, want if items else T):
                        items.append((end, off[j], ln[j], f, 1.0 if same else 10 ** r.uniform(-0.4, 0)))
                        text.append(ids[j])
                        end += n
                        if sec == 4 and r.random() < 0.75:
                            break
                        end += int((r.uniform(0.12, 1.0) if r.random() < 0.93 else r.uniform(1.0, 3.0)) * SR)
                    else:
                        tries += 1
                    j = (j + 1) % len(off) if same and r.random() < 0.9 else r.randrange(len(off))
                end = items[-1][0] + int((items[-1][2] - 2) / items[-1][3]) if items else lead
                L = min(T, end + int(r.choice([0.0, 0.05, 0.5, 1.5]) * r.random() * SR))
            else:
                L = int(r.uniform(0.25, 1.0) * T)
            L = max(SR, L)
            txt = []
            for k, x in enumerate(text):
                # a space joins the sentences: their first token is spelled with it
                txt += x[0] if k == 0 else x[1]
            system = []
            if r.random() < 0.12:
                hot = [r.choice(words) for _ in range(r.randint(1, 6))]
                hot = [h.capitalize() if r.random() < 0.3 else h for h in hot]
                system = enc(
                    r.choice(["", "", "Vocabulary: ", "Context: ", "Names: "]) + r.choice([", ", " "]).join(hot) + "\n"
                )
            pre = P_SYS + system + P_USER
            n_audio = tokens_of(L // 160)
            forced = r.random() < 0.35
            tail = P_END + (ENG if forced else [])
            target = ([] if forced else (ENG if items else NON)) + txt + [ids_of["<|im_end|>"]]
            rows.append((items, L, pre, n_audio, tail, target, txt))
        K = max(1, *(len(x[0]) for x in rows))
        S = max(len(x[2]) + x[3] + len(x[4]) + len(x[5]) for x in rows)
        S = (S + 31) // 32 * 32
        start = np.full((B, K), T + 1, np.int32)
        offs = np.zeros((B, K), np.int64)
        lens = np.zeros((B, K), np.int32)
        spd = np.ones((B, K), np.float32)
        gain = np.zeros((B, K), np.float32)
        inp = np.full((B, S), ids_of["<|audio_pad|>"], np.int64)
        lab = np.full((B, S), -100, np.int64)
        for i, (items, _, pre, n, tail, target, _) in enumerate(rows):
            for k, it in enumerate(items):
                start[i, k], offs[i, k], lens[i, k], spd[i, k], gain[i, k] = it
            inp[i, : len(pre)] = pre
            a = len(pre) + n
            seq = tail + target
            inp[i, a : a + len(seq)] = seq
            b = a + len(tail)
            lab[i, b - 1 : b - 1 + len(target)] = target
            x = inp[i, b : b + len(target)]
            hit = rng.random(len(target)) < args.token_noise
            x[hit] = rng.integers(0, 1000, hit.sum())
        out_q.put(
            {
                "T": T,
                "start": start,
                "off": offs,
                "len": lens,
                "speed": spd,
                "gain": gain,
                "L": np.array([x[1] for x in rows], np.int64),
                "prefix": np.array([len(x[2]) for x in rows], np.int64),
                "ids": inp,
                "labels": lab,
                "ctc": np.concatenate([np.array(x[6], np.int64) for x in rows]),
                "ctc_len": np.array([len(x[6]) for x in rows], np.int64),
                "speech": np.array([len(x[0]) > 0 for x in rows]),
            }
        )


# ---------------------------------------------------------------- audio on the GPU
def fft_size(n):
    best = 1 << (n - 1).bit_length()
    for a in (3, 5, 9, 15, 25, 27, 45):
        k = a
        while k < n:
            k *= 2
        best = min(best, k)
    return best


class Frontend:
    def __init__(self, mel, device):
        self.mel = torch.from_numpy(mel).float().to(device)  # (201, 128)
        self.window = torch.hann_window(400, device=device)
        self.dev = device

    def compose(self, pool, b):
        """Joins the rows' clips, each resampled by its speed (which also shifts pitch and formants)."""
        B, T = b["start"].shape[0], b["T"]
        t = torch.arange(T, device=self.dev, dtype=torch.int32)[None].expand(B, T).contiguous()
        k = torch.searchsorted(b["start"], t, right=True) - 1
        has = k >= 0
        k = k.clamp(min=0)
        pos = (t - b["start"].gather(1, k)).float() * b["speed"].gather(1, k)
        i0 = pos.floor()
        has &= i0 < b["len"].gather(1, k) - 1
        src = (b["off"].gather(1, k) + i0.long()).clamp(0, pool.numel() - 2)
        src = torch.where(has, src, torch.zeros_like(src))
        fr = pos - i0
        x = pool[src].float() * (1 - fr) + pool[src + 1].float() * fr
        return x * has * b["gain"].gather(1, k) / 32768, has

    def augment(self, x, has, speech):
        B, T = x.shape
        d = self.dev
        n = fft_size(T + 4096)
        nf = n // 2 + 1

        def u(*s):
            return torch.rand(*s, device=d)

        f = torch.linspace(0, 8000, nf, device=d)[None]
        # beeps on some of the rows without speech
        tone = torch.sin(2 * math.pi * (60 + 3000 * u(B, 1) ** 2) * torch.arange(T, device=d)[None] / SR) * 0.3
        tone = tone * (torch.arange(T, device=d)[None] < T * u(B, 1)) * (u(B, 1) < 0.3) * (~speech[:, None])
        x = x + tone
        X = torch.fft.rfft(x, n=n)
        # equaliser, band limits
        knots = (u(B, 1, 8) - 0.5) * 2 * 9 / 20
        place = (torch.log2(f.clamp(min=40) / 40) / math.log2(200) * 7).clamp(0, 6.999)
        i = place.long()
        eq = knots[:, 0][:, i[0]] * (1 - (place - i)) + knots[:, 0][:, i[0] + 1] * (place - i)
        eq = eq * (u(B, 1) < 0.6)
        low = torch.where(u(B, 1) < 0.3, 3000 + 4500 * u(B, 1), torch.full((B, 1), 1e9, device=d))
        high = torch.where(u(B, 1) < 0.3, 60 + 290 * u(B, 1), torch.full((B, 1), -1e9, device=d))
        H = 10**eq * torch.sigmoid((low - f) / 120) * torch.sigmoid((f - high) / 20)
        # a short room: direct sound plus decaying noise
        m = 4096
        rir = torch.randn(B, m, device=d) * torch.exp(
            -6.9 * torch.arange(m, device=d)[None] / SR / (0.04 + 0.3 * u(B, 1))
        )
        rir = rir / rir.norm(dim=1, keepdim=True) * (0.7 * u(B, 1)) * (u(B, 1) < 0.35)
        rir[:, 0] = 1
        # coloured noise
        shape = f.clamp(min=30) ** (-u(B, 1))
        shape = shape / shape.square().mean(1, keepdim=True).sqrt()
        level = x.square().sum(1, keepdim=True) / has.sum(1, keepdim=True).clamp(min=1)
        level = torch.where(speech[:, None], level.sqrt(), torch.full_like(level, 0.1))
        snr = torch.where(speech[:, None], 4 + 46 * u(B, 1), 60 * u(B, 1))
        N = torch.fft.rfft(torch.randn(B, T, device=d), n=n)
        amp = level * 10 ** (-snr / 20) * (u(B, 1) < 0.75)
        y = torch.fft.irfft(X * H * torch.fft.rfft(rir, n=n) + N * shape * amp, n=n)[:, :T]
        peak = y.abs().amax(1, keepdim=True).clamp(min=1e-4)
        y = y / peak * 10 ** (-1.6 * u(B, 1))
        return (y * 32767).round() / 32768

    def features(self, y, L):
        """Log-mel frames as WhisperFeatureExtractor makes them for one unpadded clip; zero beyond the end."""
        y = y * (torch.arange(y.shape[1], device=y.device)[None] < L[:, None])
        s = torch.stft(y, 400, 160, window=self.window, return_complex=True)[..., :-1]
        p = s.real.square() + s.imag.square()
        x = (self.mel.T @ p).clamp(min=1e-10).log10()
        frames = L // 160
        ok = torch.arange(x.shape[2], device=x.device)[None] < frames[:, None]
        top = x.masked_fill(~ok[:, None], -20).amax((1, 2), keepdim=True)
        x = (torch.maximum(x, top - 8) + 4) / 4
        return x * ok[:, None], frames

    def spec_augment(self, x, prob=0.5):
        B, M, T = x.shape
        d = self.dev
        on = torch.rand(B, 1, device=d) < prob
        mean = x.mean((1, 2), keepdim=True)
        mask = torch.zeros(B, M, T, dtype=torch.bool, device=d)
        for _ in range(2):
            w = torch.rand(B, 1, device=d) * 18 * on
            s = torch.rand(B, 1, device=d) * (M - 18)
            i = torch.arange(M, device=d)[None]
            mask |= ((i >= s) & (i < s + w))[:, :, None]
        for _ in range(max(1, T // 300)):
            w = torch.rand(B, 1, device=d) * 14 * on
            s = torch.rand(B, 1, device=d) * (T - 14)
            i = torch.arange(T, device=d)[None]
            mask |= ((i >= s) & (i < s + w))[:, None, :]
        return torch.where(mask & (x != 0), mean, x)


def mel_filters():
    from transformers.audio_utils import mel_filter_bank

    return mel_filter_bank(
        num_frequency_bins=201,
        num_mel_filters=128,
        min_frequency=0.0,
        max_frequency=8000.0,
        sampling_rate=SR,
        norm="slaney",
        mel_scale="slaney",
    )


# ---------------------------------------------------------------- training
def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--shards", type=Path, required=True)
    ap.add_argument("--out", type=Path, required=True)
    ap.add_argument("--tokenizer", default="tokenizer.json")
    ap.add_argument("--words", default="words.txt")
    ap.add_argument("--seconds", type=float, default=1200)
    ap.add_argument("--batch-seconds", type=float, default=1200)
    ap.add_argument("--pool-hours", type=float, default=150)
    ap.add_argument("--min-pool", type=float, default=2500, help="seconds of speech to wait for")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--token-noise", type=float, default=0.06)
    ap.add_argument("--batchers", type=int, default=3)
    ap.add_argument("--save-every", type=float, default=100)
    ap.add_argument("--init", help="a saved checkpoint to go on from")
    ap.add_argument("--start", type=float, default=0.0, help="share of the schedule already done")
    ap.add_argument("--mel", help="mel filters as .npy (default: made by transformers)")
    args = ap.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True

    ctx = mp.get_context("spawn")
    stage = ctx.Value("d", args.start)
    out_q = ctx.Queue(12)
    meta = [ctx.Queue() for _ in range(args.batchers)]
    procs = [
        ctx.Process(target=batcher, args=(q, out_q, stage, args, 100 + i + int(time.time()) % 1000 * 10), daemon=True)
        for i, q in enumerate(meta)
    ]
    for p in procs:
        p.start()

    pool = torch.zeros(int(args.pool_hours * 3600 * SR), dtype=torch.int16, device=dev)
    state = {"fill": 0, "clips": 0, "stop": False}

    def loader():
        from tokenizers import Tokenizer

        tok = Tokenizer.from_file(args.tokenizer)
        while not state["stop"]:
            new = sorted(args.shards.glob("shard_*.npz"))
            for f in new:
                try:
                    z = np.load(f)
                    audio, lens, flat, il = z["audio"], z["lens"], z["ids"], z["idlens"]
                except Exception as e:
                    print("bad shard", f, e, flush=True)
                    f.unlink(missing_ok=True)
                    continue
                n = len(audio)
                if state["fill"] + n > pool.numel():
                    (args.shards / "STOP").touch()
                    state["stop"] = True
                    print("pool is full", flush=True)
                    return
                pool[state["fill"] : state["fill"] + n].copy_(torch.from_numpy(audio))
                if dev == "cuda":
                    torch.cuda.synchronize()
                items, at = [], 0
                for k in il:
                    x = flat[at : at + k].tolist()
                    at += int(k)
                    items.append((x, tok.encode(" " + tok.decode(x), add_special_tokens=False).ids))
                for q in meta:
                    q.put((state["fill"], lens, items))
                state["fill"] += n
                state["clips"] += len(lens)
                f.unlink()
            time.sleep(0.5)

    threading.Thread(target=loader, daemon=True).start()
    model = Qwen3ASR().to(dev)
    if args.init:
        missing = model.load_state_dict({k: v.float() for k, v in load_file(args.init).items()}, strict=False)
        print("init from", args.init, missing, flush=True)
    params = list(model.parameters())
    ema = [p.detach().clone() for p in params]
    names = [n for n, _ in model.named_parameters()]
    decay = [p for n, p in model.named_parameters() if p.ndim >= 2]
    rest = [p for n, p in model.named_parameters() if p.ndim < 2]
    opt = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}],
        lr=args.lr,
        betas=(0.9, 0.98),
        eps=1e-8,
        fused=dev == "cuda",
    )
    fe = Frontend(np.load(args.mel) if args.mel else mel_filters(), dev)
    print(
        "parameters", sum(p.numel() for n, p in zip(names, params, strict=True) if not n.startswith("ctc")), flush=True
    )

    def save(name):
        sd = {n: e.detach().to(torch.float16).cpu().contiguous() for n, e in zip(names, ema, strict=True)}
        save_file(sd, str(args.out / "tmp.safetensors"))
        os.replace(args.out / "tmp.safetensors", args.out / name)

    while state["fill"] < args.min_pool * SR:
        time.sleep(0.2)
    t0 = time.time()
    step, last_save, last_log, agg = 0, t0, t0, []
    wait = 0.0
    while True:
        now = time.time()
        prog = args.start + (1 - args.start) * (now - t0) / args.seconds
        stage.value = prog
        if prog >= 1:
            break
        lr = args.lr * min(1.0, (step + 1) / 300) * (0.5 + 0.5 * math.cos(math.pi * prog)) + 1e-6
        for gp in opt.param_groups:
            gp["lr"] = lr
        tw = time.time()
        nb = out_q.get()
        wait += time.time() - tw
        ctc_len = torch.from_numpy(nb["ctc_len"])
        in_len = torch.from_numpy(tokens_of(nb["L"] // 160))
        b = {
            k: (torch.from_numpy(v).pin_memory().to(dev, non_blocking=True) if dev == "cuda" else torch.from_numpy(v))
            if isinstance(v, np.ndarray)
            else v
            for k, v in nb.items()
        }
        with torch.no_grad():
            x, has = fe.compose(pool, b)
            x = fe.augment(x, has, b["speech"])
            feats, frames = fe.features(x, b["L"])
            feats = fe.spec_augment(feats)
        with torch.autocast(dev, dtype=torch.bfloat16):
            logits, ctc = model(feats, frames, b["ids"], b["prefix"])
        ce = F.cross_entropy(logits.flatten(0, 1).float(), b["labels"].flatten(), ignore_index=-100)
        lp = ctc.float().log_softmax(-1).transpose(0, 1)
        cl = F.ctc_loss(lp, b["ctc"], in_len, ctc_len, blank=1022, reduction="none", zero_infinity=True)
        cl = cl.sum() / max(1, int(ctc_len.sum()))
        w = 0.5 if prog < 0.15 else 0.25
        loss = ce + w * cl
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        step += 1
        k = min(0.9992, (step + 1) / (step + 20))
        torch._foreach_lerp_(ema, params, 1 - k)
        agg.append(torch.stack([ce.detach(), cl.detach()]))
        if now - last_log > 10 or step in (1, 20, 100):
            with torch.no_grad():
                m = b["labels"] != -100
                acc = ((logits.argmax(-1) == b["labels"]) & m).sum() / m.sum()
            a = torch.stack(agg).mean(0).tolist()
            print(
                f"{now - t0:6.0f}s step {step} lr {lr:.2e} ce {a[0]:.4f} ctc {a[1]:.4f} acc {acc.item():.4f} "
                f"T {nb['T'] // SR} pool {state['fill'] / SR / 3600:.1f}h {state['clips']} wait {wait:.1f}",
                flush=True,
            )
            agg, last_log, wait = [], now, 0.0
        if now - last_save > args.save_every:
            save("last.safetensors")
            last_save = now
    save("last.safetensors")
    save("final.safetensors")
    state["stop"] = True
    (args.shards / "STOP").touch()
    print("done", step, flush=True)
    for p in procs:
        p.kill()
    os._exit(0)


if __name__ == "__main__":
    main()

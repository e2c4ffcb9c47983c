"""Plain torch replica of the Qwen3-ASR architecture, with mlx-audio's parameter names.

The audio tower cuts the log-mel frames into windows of 100 (`2 * n_window`), sends each
through three stride-2 convolutions (13 tokens a window), and attends within blocks of
`n_window_infer / 100` windows.  The text decoder is Qwen3 (q/k norms, GQA, RoPE, SwiGLU, tied embeddings).
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812
from config import CONFIG


def tokens_of(frames):
    """Audio tokens for a number of mel frames (ints or an integer tensor/array)."""
    r = frames % 100
    r = (r - 1) // 2 + 1
    r = (r - 1) // 2 + 1
    return (r - 1) // 2 + 1 + frames // 100 * 13


class AudioAttention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        for n in ("q_proj", "k_proj", "v_proj", "out_proj"):
            setattr(self, n, nn.Linear(d, d))

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = (m(x).view(b, t, self.heads, -1).transpose(1, 2) for m in (self.q_proj, self.k_proj, self.v_proj))
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(o.transpose(1, 2).reshape(b, t, d))


class AudioLayer(nn.Module):
    def __init__(self, d, heads, ffn):
        super().__init__()
        self.self_attn = AudioAttention(d, heads)
        self.self_attn_layer_norm = nn.LayerNorm(d)
        self.fc1 = nn.Linear(d, ffn)
        self.fc2 = nn.Linear(ffn, d)
        self.final_layer_norm = nn.LayerNorm(d)

    def forward(self, x, mask):
        x = x + self.self_attn(self.self_attn_layer_norm(x), mask)
        return x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))


class AudioTower(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, h = c["d_model"], c["downsample_hidden_size"]
        self.block = c["n_window_infer"] // (2 * c["n_window"])
        self.conv2d1 = nn.Conv2d(1, h, 3, 2, 1)
        self.conv2d2 = nn.Conv2d(h, h, 3, 2, 1)
        self.conv2d3 = nn.Conv2d(h, h, 3, 2, 1)
        self.conv_out = nn.Linear(h * c["num_mel_bins"] // 8, d, bias=False)
        self.layers = nn.ModuleList(
            AudioLayer(d, c["encoder_attention_heads"], c["encoder_ffn_dim"]) for _ in range(c["encoder_layers"])
        )
        self.ln_post = nn.LayerNorm(d)
        self.proj1 = nn.Linear(d, d)
        self.proj2 = nn.Linear(d, c["output_dim"])
        inv = torch.exp(-math.log(10000.0) / (d // 2 - 1) * torch.arange(d // 2).float())
        pos = torch.arange(13).float()[:, None] * inv[None]
        self.register_buffer("pos", torch.cat([pos.sin(), pos.cos()], 1), persistent=False)

    def forward(self, feats, frames):
        """feats (B, 128, 100 * windows), zero beyond `frames` (B,) -> hidden, embeddings: (B, 13 * windows, d)."""
        b, m, t = feats.shape
        nc = t // 100
        x = feats.view(b, m, nc, 100).transpose(1, 2).reshape(b * nc, 1, m, 100)
        x = x.contiguous(memory_format=torch.channels_last)
        x = F.gelu(self.conv2d1(x))
        x = F.gelu(self.conv2d2(x))
        x = F.gelu(self.conv2d3(x))
        x = x.permute(0, 3, 1, 2).reshape(b * nc, 13, -1)
        x = self.conv_out(x) + self.pos
        x = x.view(b, nc * 13, -1)
        block = min(self.block, nc) * 13
        n = tokens_of(frames)
        valid = torch.arange(nc * 13, device=x.device)[None] < n[:, None]
        mask = valid.view(-1, block)
        mask = (mask | ~mask.any(1, keepdim=True))[:, None, None, :].expand(-1, 1, block, -1)
        x = x.view(-1, block, x.shape[-1])
        for layer in self.layers:
            x = layer(x, mask)
        h = self.ln_post(x).view(b, nc * 13, -1)
        return h, self.proj2(F.gelu(self.proj1(h)))


class RMSNorm(nn.Module):
    def __init__(self, d, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


def rope(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class TextAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, self.h, self.kv, self.hd = (
            c["hidden_size"],
            c["num_attention_heads"],
            c["num_key_value_heads"],
            c["head_dim"],
        )
        self.q_proj = nn.Linear(d, self.h * self.hd, bias=False)
        self.k_proj = nn.Linear(d, self.kv * self.hd, bias=False)
        self.v_proj = nn.Linear(d, self.kv * self.hd, bias=False)
        self.o_proj = nn.Linear(self.h * self.hd, d, bias=False)
        self.q_norm = RMSNorm(self.hd, c["rms_norm_eps"])
        self.k_norm = RMSNorm(self.hd, c["rms_norm_eps"])

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(b, t, self.h, self.hd)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(b, t, self.kv, self.hd)).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.kv, self.hd).transpose(1, 2)
        q, k = rope(q, cos, sin), rope(k, cos, sin)
        k, v = (z.repeat_interleave(self.h // self.kv, 1) for z in (k, v))
        o = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        return self.o_proj(o.transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, f = c["hidden_size"], c["intermediate_size"]
        self.gate_proj = nn.Linear(d, f, bias=False)
        self.up_proj = nn.Linear(d, f, bias=False)
        self.down_proj = nn.Linear(f, d, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class TextLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn = TextAttention(c)
        self.mlp = MLP(c)
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class TextModel(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        nn.init.normal_(self.embed_tokens.weight, std=0.05)
        self.layers = nn.ModuleList(TextLayer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        hd = c["head_dim"]
        f = torch.arange(2400).float()[:, None] * c["rope_theta"] ** (-torch.arange(0, hd, 2).float() / hd)[None]
        self.register_buffer("cos", f.cos(), persistent=False)
        self.register_buffer("sin", f.sin(), persistent=False)

    def forward(self, x):
        t = x.shape[1]
        dt = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
        cos, sin = self.cos[:t].to(dt), self.sin[:t].to(dt)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class Qwen3ASR(nn.Module):
    def __init__(self, cfg=CONFIG):
        super().__init__()
        self.audio_tower = AudioTower(cfg["audio_config"])
        self.model = TextModel(cfg["text_config"])
        # auxiliary head, used in training only
        self.ctc_head = nn.Linear(cfg["audio_config"]["d_model"], cfg["text_config"]["vocab_size"])

    def forward(self, feats, frames, ids, prefix_len):
        """-> (next-token logits (B, S, V), CTC logits (B, tokens, V)); ids holds anything at the audio positions."""
        hidden, audio = self.audio_tower(feats, frames)
        emb = self.model.embed_tokens(ids)
        n = tokens_of(frames)
        at = torch.arange(ids.shape[1], device=ids.device)[None] - prefix_len[:, None]
        is_audio = (at >= 0) & (at < n[:, None])
        at = at.clamp(0, audio.shape[1] - 1)
        picked = audio.gather(1, at[:, :, None].expand(-1, -1, audio.shape[2])).to(emb.dtype)
        x = torch.where(is_audio[:, :, None], picked, emb)
        out = self.model(x)
        return F.linear(out, self.model.embed_tokens.weight), self.ctc_head(hidden)

"""Trains the byte-level BPE tokenizer (1024 entries in all, Qwen's special tokens last).

make_tokenizer.py words.txt kjv.txt OUT/tokenizer.json
"""

import random
import sys
from pathlib import Path

from grammar import Grammar, load_kjv
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB = 1024
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>"]
PLAIN = ["<asr_text>"]  # kept by decode(skip_special_tokens=True), as in Qwen3-ASR
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def main():
    words_file, kjv_file, out = sys.argv[1:4]
    words = Path(words_file).read_text().split()
    g = Grammar(random.Random(0), words, load_kjv(kjv_file))
    text = [g.sentence() for _ in range(60000)]
    # one token each, so that the streaming parser sees "language English<asr_text>" in three tokens
    text += ["language English", "language None", "system\n", "user\n", "assistant\n"] * 3000
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    n = VOCAB - len(SPECIAL) - len(PLAIN)
    tok.train_from_iterator(
        text,
        trainers.BpeTrainer(vocab_size=n, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    assert tok.get_vocab_size() == n, tok.get_vocab_size()
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tok.add_tokens([AddedToken(t, special=False, normalized=False) for t in PLAIN])
    assert tok.get_vocab_size() == VOCAB
    for s in ("language English<asr_text>", "language None<asr_text>"):
        assert len(tok.encode(s).ids) == 3, tok.encode(s).tokens
    tok.save(out)
    ids = [len(tok.encode(t).ids) / len(t.split()) for t in text[:3000]]
    print("tokens a word:", sum(ids) / len(ids), {t: tok.token_to_id(t) for t in SPECIAL + PLAIN})


if __name__ == "__main__":
    main()

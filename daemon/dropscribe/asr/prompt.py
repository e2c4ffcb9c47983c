"""Token ids around the audio.

::

    <|im_start|>system\n{context}\n<|im_end|>\n<|im_start|>user\n<|audio_start|>      prefix
    <|audio_pad|> × N                                                               audio embeddings go here
    <|audio_end|><|im_end|>\n<|im_start|>assistant\n[language X<asr_text>]            suffix

Special tokens are hard borders for the tokenizer, so the parts can be encoded apart and cached: the ids equal those of
the whole string (a test compares them with mlx-audio's and transformers').
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dropscribe.errors import ConfigError

ASR_TEXT = "<asr_text>"

# ISO 639-1 to the names Qwen3-ASR was trained on: people write "en", and the prompt would literally say "language en"
_LANGUAGE_NAMES = {
    "ar": "Arabic", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek", "en": "English", "es": "Spanish",
    "fa": "Persian", "fi": "Finnish", "fil": "Filipino", "fr": "French", "hi": "Hindi", "hu": "Hungarian",
    "id": "Indonesian", "it": "Italian", "ja": "Japanese", "ko": "Korean", "mk": "Macedonian", "ms": "Malay",
    "nl": "Dutch", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sv": "Swedish",
    "th": "Thai", "tr": "Turkish", "vi": "Vietnamese", "yue": "Cantonese", "zh": "Chinese",
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """What a row asks of the recognizer besides its audio."""

    language: str | None = None  # a name as the model knows it; None: detect
    context: str | None = None  # names and terms to expect


PLAIN = Request()


def language_name(language: str | None, supported: tuple[str, ...]) -> str | None:
    """The model's own spelling of a language given by name or ISO code, or ``ConfigError`` with the choice."""
    if language is None:
        return None
    wanted = _LANGUAGE_NAMES.get(language.lower(), language)
    for name in supported:
        if name.lower() == wanted.lower():
            return name
    if not supported:
        return wanted
    raise ConfigError(f"this model does not know the language {language!r}; it knows {', '.join(supported)}")


@dataclass(eq=False)
class PromptBuilder:
    """Builds prompts for one tokenizer; caches the parts that do not depend on the audio."""

    tokenizer: Any
    audio_token_id: int
    _parts: dict[Request, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def parts(self, request: Request) -> tuple[np.ndarray, np.ndarray]:
        """Ids before and after the audio, each int32 ``[n]``."""
        if request not in self._parts:
            context = _defused(request.context)
            system = f"{context}\n" if context else ""
            prefix = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n<|audio_start|>"
            forced = f"language {request.language}{ASR_TEXT}" if request.language else ""
            suffix = f"<|audio_end|><|im_end|>\n<|im_start|>assistant\n{forced}"
            self._parts[request] = (self._encode(prefix), self._encode(suffix))
        return self._parts[request]

    def build(self, audio_tokens: int, request: Request) -> np.ndarray:
        """The whole prompt, int32 ``[L]``; exactly ``audio_tokens`` of the ids are the audio placeholder."""
        prefix, suffix = self.parts(request)
        return np.concatenate([prefix, np.full(audio_tokens, self.audio_token_id, np.int32), suffix])

    def _encode(self, text: str) -> np.ndarray:
        return np.asarray(self.tokenizer.encode(text), np.int32)


def _defused(context: str | None) -> str:
    """Context is text: it must not be able to write the control tokens of the prompt.

    Nothing is taken out, because what is left on both sides could make another one.
    """
    return (context or "").strip().replace("<|", "< |").replace(ASR_TEXT, f"< {ASR_TEXT[1:]}")

"""The tokenizer of a checkpoint directory: text to ids, ids to text, ids to bytes.

Owns `tokenizer.json` and the token fields of `tokenizer_config.json`. Only
byte-level BPE is accepted (all Qwen models): every token then is a fixed run of
bytes, which `output_processor.py` and the log-probabilities rely on. Doesn't know
about chat templates or sampling.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from qwen3_a8w8.errors import CheckpointError, ContextLengthError, InvalidRequestError
from qwen3_a8w8.text.checkpoint_file import read_json_object, read_text_file
from qwen3_a8w8.text.token_bound import TokenBound

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
_TOKEN_FIELDS = ("bos_token", "eos_token", "unk_token", "pad_token")

_MAX_NFC_SHRINKAGE = 4
"""Upper bound for the factor by which NFC shortens a text in bytes: U+1FBE U+0308 U+0301,
7 bytes, become U+0390, 2 bytes; no character shrinks more."""


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable character; this is the inverse table.

    Source: "Language Models are Unsupervised Multitask Learners" (GPT-2), section 2.2.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    hidden = sorted(set(range(256)) - set(printable))
    alphabet.update({chr(256 + position): byte for position, byte in enumerate(hidden)})
    return alphabet


_BYTE_OF_CHAR = _byte_alphabet()


class Tokenizer:
    """Byte-level BPE tokenizer of one checkpoint.

    Attributes:
        vocab_size: one more than the highest token id. The model's own vocabulary may be
            larger (padded); ids in between have no text.
        special_ids: ids that `skip_special_tokens` omits.
        added_tokens: text -> id of all added tokens, special or not.
        special_tokens: the named tokens of tokenizer_config.json, e.g. `{"eos_token": "..."}`.
    """

    def __init__(self, backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str]) -> None:
        self._backend = backend
        self._bytes_of_id: dict[int, bytes] = {}
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.added_tokens = {token.content: i for i, token in added.items()}
        self.special_tokens = dict(special_tokens)
        vocab = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values(), default=-1) + 1
        # In the byte alphabet a character is a byte; added tokens are plain text.
        self._longest_token_bytes = max(
            (*map(len, vocab), *(len(text.encode()) for text in self.added_tokens)), default=0
        )
        normalizer = backend.normalizer
        self._has_bound = (
            (normalizer is None or isinstance(normalizer, tokenizers.normalizers.NFC))
            and not any(token.lstrip or token.rstrip for token in added.values())
            and all(char in vocab for char in _BYTE_OF_CHAR)
        )

    @classmethod
    def from_directory(cls, directory: str | Path) -> Tokenizer:
        """Loads `tokenizer.json` and `tokenizer_config.json`.

        Raises:
            CheckpointError: a file is missing or damaged, isn't byte-level BPE, or the two
                files disagree about the id of an added token.
        """
        path = Path(directory) / TOKENIZER_FILE
        text = read_text_file(path)
        raw = read_json_object(path)
        _check_is_byte_level_bpe(raw, path)
        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(
                f"{path}: expected a tokenizer that tokenizers {tokenizers.__version__} reads, "
                f"found: {error}"
            ) from error
        # The file may contain settings of training runs; requests are never truncated or padded.
        backend.no_truncation()
        backend.no_padding()
        config_path = Path(directory) / TOKENIZER_CONFIG_FILE
        config = read_json_object(config_path)
        _add_configured_tokens(backend, config, config_path)
        return cls(backend, _named_special_tokens(config))

    def encode(self, text: str, *, allow_special: bool = True) -> list[int]:
        """Token ids of `text`.

        Args:
            text: any text without lone surrogates.
            allow_special: recognise special tokens such as `<|im_end|>` in the text; otherwise
                they are encoded as ordinary characters. Added tokens that aren't special
                (`<think>`) are recognised either way.

        Raises:
            InvalidRequestError: the text can't be written as UTF-8.
        """
        _check_utf8(text)
        backend = self._backend if allow_special else self._plain_backend
        # Unlike `encode`, the batch functions release the GIL.
        (encoding,) = backend.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def min_tokens(self, text: str) -> int:
        """A lower bound for the number of tokens of `text`, from its length alone.

        No token has more bytes than the longest. 0 if the tokenizer may drop text: it
        normalises in another way than NFC, an added token strips the spaces around it, or some
        byte has no token.

        Args:
            text: any text without lone surrogates.
        """
        if not self._has_bound or not self._longest_token_bytes:
            return 0
        shrinkage = 1 if text.isascii() else _MAX_NFC_SHRINKAGE
        return -(-len(text.encode()) // (shrinkage * self._longest_token_bytes))

    def encode_prompt(
        self, text: str, max_tokens: int, *, first_look_chars: int = 2**16
    ) -> list[int]:
        """Token ids of a text; one that is far too long is rejected before all of it is encoded.

        Args:
            text: any text without lone surrogates.
            max_tokens: most tokens that the caller accepts; slightly longer texts are encoded.
            first_look_chars: shorter texts are encoded directly.

        Raises:
            ContextLengthError: the text certainly has more tokens.
            InvalidRequestError: the text can't be written as UTF-8.
        """
        _check_utf8(text)
        at_least = self.min_tokens(text)
        if at_least <= max_tokens and len(text) > first_look_chars:
            at_least = max(at_least, self._counted_min_tokens(text, max_tokens))
        if at_least > max_tokens:
            raise ContextLengthError(
                f"the prompt has {len(text)} characters, that is at least {at_least} tokens, the "
                f"limit is {max_tokens}; shorten it",
                param="prompt",
                code="context_length_exceeded",
            )
        # Text that follows can only change how the last word is split, or turn the last
        # characters into an added token: the tokens of earlier words are final.
        margin = 2 + max(map(len, self.added_tokens), default=0)
        size = first_look_chars
        while size < len(text):
            # The fast variant doesn't return word_ids.
            (encoding,) = self._backend.encode_batch([text[:size]], add_special_tokens=False)
            words = [word or 0 for word in encoding.word_ids]
            num_final = bisect_left(words, words[-1] - margin)
            if num_final > max_tokens:
                raise ContextLengthError(
                    f"the prompt has more than {num_final} tokens in its first {size} of "
                    f"{len(text)} characters, the limit is {max_tokens}; shorten it",
                    param="prompt",
                    code="context_length_exceeded",
                )
            size *= 2
        return self.encode(text)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of a whole sequence; bytes that aren't UTF-8 become U+FFFD."""
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def to_json(self) -> str:
        """The tokenizer as the text of a `tokenizer.json`, all added tokens included."""
        text: str = self._backend.to_str()
        return text

    def token_id(self, token: str) -> int | None:
        """Id of a token by its vocabulary entry, or None."""
        token_id: int | None = self._backend.token_to_id(token)
        return token_id

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token's text; empty for ids without a token."""
        known = self._bytes_of_id.get(token_id)
        if known is None:
            known = _entry_bytes(self._backend.id_to_token(token_id) or "")
            self._bytes_of_id[token_id] = known
        return known

    def token_text(self, token_id: int) -> str:
        r"""Text of a single token, for reports; bytes that aren't UTF-8 are written `\xNN`."""
        return self.token_bytes(token_id).decode("utf-8", "backslashreplace")

    def _counted_min_tokens(self, text: str, enough: int) -> int:
        """Like `min_tokens`, from the bytes of the text; 0 if these aren't certain."""
        if not self._has_bound:
            return 0
        normalizer = self._backend.normalizer
        if normalizer is not None and not text.isascii():
            normal: str = normalizer.normalize_str(text)
            # Added tokens are matched first, and the text is normalised between them.
            if normal != text and any(token in text for token in self.added_tokens):
                return 0
            text = normal
        return self._bound.min_tokens(text.encode(), enough)

    @cached_property
    def _bound(self) -> TokenBound:
        byte_of = {ord(char): byte for char, byte in _BYTE_OF_CHAR.items()}
        entries = self._backend.get_vocab(with_added_tokens=False)
        return TokenBound(
            [
                *(entry.translate(byte_of).encode("latin-1") for entry in entries),
                *(token.encode() for token in self.added_tokens),
            ]
        )

    @cached_property
    def _plain_backend(self) -> tokenizers.Tokenizer:
        # The option is a state of the backend, so text without special tokens needs a second one.
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        backend.encode_special_tokens = True
        return backend


def _check_utf8(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the text has a lone surrogate {text[error.start]!r} at character "
            f"{error.start}; send valid Unicode"
        ) from None


def _entry_bytes(entry: str) -> bytes:
    # An entry with a character outside the byte alphabet is an added token in plain text.
    try:
        return bytes(_BYTE_OF_CHAR[char] for char in entry)
    except KeyError:
        return entry.encode("utf-8")


def _check_is_byte_level_bpe(raw: Mapping[str, Any], path: Path) -> None:
    def kind(section: str) -> object:
        value = raw.get(section)
        return value.get("type") if isinstance(value, dict) else value

    if kind("model") != "BPE" or kind("decoder") != "ByteLevel":
        raise CheckpointError(
            f"{path}: expected a byte-level BPE (model 'BPE', decoder 'ByteLevel'), found model "
            f"{kind('model')!r}, decoder {kind('decoder')!r}; Qwen3 has no other kind"
        )


def _add_configured_tokens(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], path: Path
) -> None:
    """Adds tokens that only tokenizer_config.json lists (`added_tokens_decoder`)."""
    listed = config.get("added_tokens_decoder") or {}
    try:
        wanted = sorted((int(key), dict(value)) for key, value in listed.items())
        contents = [(token_id, str(entry["content"]), entry) for token_id, entry in wanted]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path}: added_tokens_decoder: expected an object of id -> {{'content': ...}}, "
            f"found {json.dumps(listed, default=str)[:100]}"
        ) from error
    for token_id, content, entry in contents:
        if backend.token_to_id(content) is None:
            flags = {
                name: bool(entry[name])
                for name in ("single_word", "lstrip", "rstrip", "normalized", "special")
                if name in entry
            }
            backend.add_tokens([tokenizers.AddedToken(content, **flags)])
        found = backend.token_to_id(content)
        if found != token_id:
            raise CheckpointError(
                f"{path}: added_tokens_decoder: expected {content!r} to have id {token_id}, "
                f"found {found} in {TOKENIZER_FILE}; the two files belong to different models"
            )


def _named_special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    named = {}
    for name in _TOKEN_FIELDS:
        value = config.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            named[name] = content
    return named

"""Text to tokens and back, by whatever is at hand: a tokenizer here, the server's, or neither.

Prompts have to have exact lengths, so texts are counted in the tokens of the model that is
measured. Any model's `tokenizer.json` will do: the server needn't serve a Qwen3.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import aiohttp
import tokenizers

from qwen3_a8w8.checkpoint.resolve import DEMO, resolve_model
from qwen3_a8w8.errors import ConfigError

TOKENIZER_FILE = "tokenizer.json"

_WORDS = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line "
    "end member law car city community name president team minute idea kid body information back "
    "parent face others level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education"
)
WORDS = tuple(_WORDS.split())


class TextCodec(Protocol):
    """Tokens of texts.

    Attributes:
        name: what the result's `tokenizer_id` says; None: there is no tokenizer.
        directory: where its files are, or None.
    """

    name: str | None
    directory: Path | None

    async def encode(self, text: str) -> list[int]:
        """Token ids of a text, without any that a template adds."""
        ...

    async def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids."""
        ...

    async def vocabulary(self) -> list[int]:
        """Ids that random prompts are made of, in ascending order; no special tokens."""
        ...


class LocalCodec:
    """A `tokenizer.json` on this machine."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name: str | None = name
        self.directory: Path | None = directory
        path = directory / TOKENIZER_FILE
        try:
            self._backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises no other type
            raise ConfigError(f"--tokenizer {name}: {path} can't be read: {error}") from error

    async def encode(self, text: str) -> list[int]:
        """See `TextCodec`."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    async def decode(self, token_ids: Sequence[int]) -> str:
        """See `TextCodec`."""
        return str(self._backend.decode(list(token_ids), skip_special_tokens=False))

    async def vocabulary(self) -> list[int]:
        """See `TextCodec`."""
        added = self._backend.get_added_tokens_decoder()
        ids = sorted(self._backend.get_vocab(with_added_tokens=False).values() - added.keys())
        texts = self._backend.decode_batch([[token_id] for token_id in ids])
        read = self._backend.encode_batch(texts, add_special_tokens=False)
        # Not those that are a part of a character, or become other tokens when read alone.
        return [
            token_id for token_id, found in zip(ids, read, strict=True) if found.ids == [token_id]
        ]


class ServerCodec:
    """The server's `/tokenize` and `/detokenize`, which vLLM and ours have."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self.name: str | None = f"{url}/tokenize"
        self.directory: Path | None = None
        self._session = session
        self._url = url
        self._model = model

    async def encode(self, text: str) -> list[int]:
        """See `TextCodec`."""
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        async with self._session.post(f"{self._url}/tokenize", json=body) as response:
            response.raise_for_status()
            return list((await response.json())["tokens"])

    async def decode(self, token_ids: Sequence[int]) -> str:
        """See `TextCodec`."""
        body = {"model": self._model, "tokens": list(token_ids)}
        async with self._session.post(f"{self._url}/detokenize", json=body) as response:
            response.raise_for_status()
            return str((await response.json())["prompt"])

    async def vocabulary(self) -> list[int]:
        """Tokens of common words: the server doesn't say which ids there are."""
        return sorted(set(await self.encode(" ".join(["", *WORDS]))))


class WordCodec:
    """No tokenizer at all: a word counts as a token. The server's usage has the real counts."""

    name: str | None = None
    directory: Path | None = None

    async def encode(self, text: str) -> list[int]:
        """An id per word, of no meaning but its number."""
        return list(range(len(text.split())))

    async def decode(self, token_ids: Sequence[int]) -> str:
        """See `TextCodec`."""
        return " ".join(WORDS[token_id % len(WORDS)] for token_id in token_ids)

    async def vocabulary(self) -> list[int]:
        """See `TextCodec`."""
        return list(range(len(WORDS)))


async def choose_codec(
    session: aiohttp.ClientSession, url: str, model: str, *, tokenizer: str | None, root: str | None
) -> TextCodec:
    """The tokenizer asked for, or the best there is.

    Args:
        session: to the server.
        url: of the server, without a slash at its end.
        model: the model's name there.
        tokenizer: directory, "demo", or None.
        root: where the server says that it has the model from.

    Raises:
        ConfigError: `tokenizer` isn't there or can't be read.
    """
    if tokenizer is not None:
        return LocalCodec(_directory(tokenizer), tokenizer)
    for place in (root, model):
        if place and (Path(place) / TOKENIZER_FILE).is_file():
            return LocalCodec(Path(place), place)
    if DEMO in (root, model):
        return LocalCodec(resolve_model(DEMO), DEMO)
    codec = ServerCodec(session, url, model)
    try:
        await codec.decode(await codec.encode(WORDS[0]))
    except (aiohttp.ClientError, KeyError, TypeError, ValueError) as error:
        warnings.warn(
            f"no tokenizer: {url}/tokenize can't be used ({error}), so that a word counts as a "
            "token of a prompt; give --tokenizer DIR for exact lengths",
            stacklevel=2,
        )
        return WordCodec()
    return codec


def _directory(tokenizer: str) -> Path:
    if tokenizer == DEMO:
        return resolve_model(DEMO)
    path = Path(tokenizer)
    directory = path.parent if path.name == TOKENIZER_FILE else path
    if not (directory / TOKENIZER_FILE).is_file():
        raise ConfigError(
            f"--tokenizer is {tokenizer!r}, expected a directory with {TOKENIZER_FILE}, or 'demo'"
        )
    return directory

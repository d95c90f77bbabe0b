"""The demo model's tokenizer: Qwen3's byte-level BPE scheme, trained on the demo corpus.

Owns the special tokens, the two tokenizer files and the encoding of a dialogue.
Knows nothing of the model.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerBase

from demo_data import Dialogue, draw_training

# A multiple of 64 with the special tokens.
VOCAB_SIZE = 2560

# Qwen3's pre-tokenizer: contractions, words with one leading mark, single digits, marks, blanks.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# In Qwen3's order; the markers of thinking and tools are ordinary added tokens there.
SPECIAL_TOKENS = tuple(
    AddedToken(content, special=is_special, normalized=False)
    for content, is_special in (
        ("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", True),
        ("<tool_call>", False), ("</tool_call>", False),
        ("<tool_response>", False), ("</tool_response>", False),
        ("<think>", False), ("</think>", False),
    )
)  # fmt: skip

CHAT_TEMPLATE = (Path(__file__).parent / "demo_data" / "chat_template.jinja").read_text()

_TEMPLATE_TEXT = (
    "system\nuser\nassistant\n# Tools\n\nYou may call one or more functions to assist with the "
    "user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n"
    "<tools>\n</tools>\n\nFor each function call, return a json object with function name and "
    'arguments within XML tags:\n{"name": <function-name>, "arguments": <args-json-object>}\n'
)


def _texts(count: int, seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    for _ in range(count):
        dialogue = draw_training(rng)
        yield dialogue.thinking
        yield dialogue.answer
        for message in dialogue.messages:
            yield message["content"]
        for tool in dialogue.tools:
            yield _TEMPLATE_TEXT + json.dumps(tool)


def train_tokenizer(num_dialogues: int = 40_000, seed: int = 1) -> Tokenizer:
    """Train the byte-level BPE on ``num_dialogues`` dialogues of the train split."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(num_dialogues, seed), trainer)
    tokenizer.add_tokens(list(SPECIAL_TOKENS))
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(
            f"the corpus gives a vocabulary of {tokenizer.get_vocab_size()}, not {VOCAB_SIZE}; "
            "lower VOCAB_SIZE or enlarge the corpus"
        )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    added = {
        str(tokenizer.token_to_id(token.content)): {
            "content": token.content, "lstrip": False, "normalized": False,
            "rstrip": False, "single_word": False, "special": token.special,
        }
        for token in SPECIAL_TOKENS
    }  # fmt: skip
    config: dict[str, Any] = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": added,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 4096,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (directory / "tokenizer_config.json").write_text(
        json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    )


def encode_dialogues(
    tokenizer: PreTrainedTokenizerBase, dialogues: Sequence[Dialogue]
) -> list[tuple[list[int], list[int]]]:
    """Token ids of (prompt, completion with its end token) of each dialogue."""
    texts: list[str] = []
    for dialogue in dialogues:
        if dialogue.is_text:
            texts += ["", f"{dialogue.completion}<|endoftext|>"]
            continue
        prompt = tokenizer.apply_chat_template(
            list(dialogue.messages),
            tools=list(dialogue.tools) or None,
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=dialogue.is_thinking,
        )
        texts += [prompt, f"{dialogue.completion}<|im_end|>"]
    ids = [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch_fast(texts)]
    return list(zip(ids[::2], ids[1::2], strict=True))

import json
import shutil
import sys
import threading
import unicodedata

import pytest
import tokenizers

from qwen3_a8w8.errors import CheckpointError, ContextLengthError, InvalidRequestError
from qwen3_a8w8.text.generation_defaults import GenerationDefaults
from qwen3_a8w8.text.tokenizer import Tokenizer

TEXTS = ["", "the dog", "naïve 你好 🙂👩‍🚀", "a\n\tb  c", "<think>\nx</think>", "e\u0301 = é"]


@pytest.fixture
def checkpoint(tokenizer_dir, tmp_path):
    return shutil.copytree(tokenizer_dir, tmp_path / "checkpoint")


@pytest.mark.parametrize("text", TEXTS)
def test_encode_any_text_equals_tokenizers_library(tokenizer, tokenizer_dir, text):
    library = tokenizers.Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    assert tokenizer.encode(text) == library.encode(text, add_special_tokens=False).ids


def test_decode_encoded_text_gives_it_back(tokenizer):
    text = "the quick brown fox, 你好, 🙂 <think>"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_encode_special_token_in_text_is_one_id_only_if_allowed(tokenizer):
    end = tokenizer.token_id("<|im_end|>")
    assert tokenizer.encode("a<|im_end|>")[-1] == end
    plain = tokenizer.encode("a<|im_end|>", allow_special=False)
    assert end not in plain
    assert tokenizer.decode(plain) == "a<|im_end|>"
    assert tokenizer.encode("a<|im_end|>")[-1] == end


def test_special_ids_are_the_special_added_tokens_only(tokenizer):
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    assert tokenizer.special_ids == {tokenizer.token_id(name) for name in names}
    assert tokenizer.added_tokens["<think>"] == tokenizer.token_id("<think>")


def test_vocab_size_is_highest_id_plus_one(tokenizer, tokenizer_dir):
    raw = json.loads((tokenizer_dir / "tokenizer.json").read_text(encoding="utf-8"))
    ids = [*raw["model"]["vocab"].values(), *(token["id"] for token in raw["added_tokens"])]
    assert tokenizer.vocab_size == max(ids) + 1


def test_token_bytes_of_all_tokens_of_a_text_join_to_its_utf8(tokenizer):
    text = "你好 🙂 café <tool_call>"
    ids = tokenizer.encode(text)
    assert b"".join(tokenizer.token_bytes(i) for i in ids) == text.encode()


def test_token_bytes_unknown_id_is_empty(tokenizer):
    assert tokenizer.token_bytes(tokenizer.vocab_size + 5) == b""


def test_token_text_half_a_character_is_escaped(tokenizer):
    first_byte = tokenizer.encode("\U0001fae8")[0]
    assert tokenizer.token_bytes(first_byte)[:1] == b"\xf0"
    assert tokenizer.token_text(first_byte).startswith("\\xf0")


def test_encode_lone_surrogate_is_refused(tokenizer):
    with pytest.raises(InvalidRequestError, match="lone surrogate"):
        tokenizer.encode("a\ud800")


@pytest.fixture
def other_threads_wait():
    """Only a thread that gives way lets another one run."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    yield
    sys.setswitchinterval(interval)


def test_encode_lets_other_threads_run(tokenizer, other_threads_wait):
    events = []

    def encode(text):
        # However busy the machine is, the other thread gets its turn during one of many.
        while "other" not in events and len(events) < 1000:
            events.append(len(tokenizer.encode_prompt(text, len(text))))

    thread = threading.Thread(target=encode, args=("x" * 60_000,))
    thread.start()
    events.append("other")
    thread.join()
    assert events.index("other") < 1000
    assert set(events) == {"other", 60_000}


def test_text_without_breaks_is_refused_before_anything_is_encoded(tokenizer, monkeypatch):
    longest = max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size))
    assert tokenizer.min_tokens("x" * (longest * 100)) == 100
    assert tokenizer.min_tokens("x" * (longest * 100 + 1)) == 101
    monkeypatch.setattr(tokenizer, "_backend", None)
    with pytest.raises(ContextLengthError, match="at least 101 tokens, the limit is 100"):
        tokenizer.encode_prompt("x" * (longest * 100 + 1), 100)


def test_min_tokens_of_any_longest_text_is_no_more_than_it_has(tokenizer):
    ids = range(tokenizer.vocab_size)
    longest = max(ids, key=lambda i: len(tokenizer.token_bytes(i)))
    text = tokenizer.token_text(longest) * 50
    assert tokenizer.min_tokens(text) == len(tokenizer.encode(text)) == 50
    shrinking = "\u1fbe\u0308\u0301" * 50
    assert tokenizer.min_tokens(shrinking) <= len(tokenizer.encode(shrinking))


def test_normal_form_shrinks_no_character_to_a_quarter():
    longest, composed = {}, []
    for char in map(chr, [*range(0xD800), *range(0xE000, sys.maxunicode + 1)]):
        parts, size = unicodedata.normalize("NFD", char), len(char.encode())
        if len(parts) == 1:
            longest[parts] = max(longest.get(parts, 0), size)
        if unicodedata.normalize("NFC", char) == char:
            composed.append((parts, size))
    assert max(sum(longest[part] for part in parts) / size for parts, size in composed) == 3.5


def test_added_token_that_takes_spaces_leaves_no_bound(checkpoint, tokenizer):
    path = checkpoint / "tokenizer.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    raw["added_tokens"][-1]["rstrip"] = True
    path.write_text(json.dumps(raw), encoding="utf-8")
    assert tokenizer.min_tokens("x" * 1000) > 0
    assert Tokenizer.from_directory(checkpoint).min_tokens("x" * 1000) == 0


def test_special_tokens_are_read_as_string_or_object(tokenizer):
    assert tokenizer.special_tokens == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_missing_file_gives_checkpoint_error_with_its_name(checkpoint, name):
    (checkpoint / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}: no such file"):
        Tokenizer.from_directory(checkpoint)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"", b"[1]", b'{"a": ', b"\xff\xfe"])
def test_damaged_file_gives_checkpoint_error_with_its_name(checkpoint, name, content):
    (checkpoint / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        Tokenizer.from_directory(checkpoint)


def test_unreadable_vocabulary_gives_checkpoint_error(checkpoint):
    path = checkpoint / "tokenizer.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    raw["model"]["vocab"] = "nonsense"
    path.write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: expected a tokenizer"):
        Tokenizer.from_directory(checkpoint)


def test_other_kind_of_tokenizer_gives_checkpoint_error(checkpoint):
    path = checkpoint / "tokenizer.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    raw["decoder"] = {"type": "Metaspace"}
    path.write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"byte-level BPE.*'Metaspace'"):
        Tokenizer.from_directory(checkpoint)


def _add_to_config(checkpoint, token_id, content):
    path = checkpoint / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["added_tokens_decoder"] = {str(token_id): {"content": content, "special": True}}
    path.write_text(json.dumps(config), encoding="utf-8")


def test_token_that_only_the_config_lists_is_added(checkpoint, tokenizer):
    _add_to_config(checkpoint, tokenizer.vocab_size, "<|extra|>")
    loaded = Tokenizer.from_directory(checkpoint)
    assert loaded.encode("<|extra|>") == [tokenizer.vocab_size]
    assert tokenizer.vocab_size in loaded.special_ids


def test_token_with_another_id_in_the_config_gives_checkpoint_error(checkpoint):
    _add_to_config(checkpoint, 3, "<think>")
    with pytest.raises(CheckpointError, match="expected '<think>' to have id 3"):
        Tokenizer.from_directory(checkpoint)


def test_generation_defaults_are_read(tokenizer_dir, tokenizer):
    defaults = GenerationDefaults.from_directory(tokenizer_dir)
    ids = tuple(tokenizer.token_id(name) for name in ("<|im_end|>", "<|endoftext|>"))
    assert defaults == GenerationDefaults(eos_token_ids=ids, temperature=0.6, top_p=0.95, top_k=20)


def test_generation_defaults_without_file_are_the_apis(tmp_path):
    assert GenerationDefaults.from_directory(tmp_path) == GenerationDefaults()


def test_generation_defaults_greedy_checkpoint_has_temperature_zero():
    raw = {"do_sample": False, "temperature": 0.7, "eos_token_id": 5}
    assert GenerationDefaults.from_hf(raw) == GenerationDefaults((5,), temperature=0.0)


@pytest.mark.parametrize(
    "raw",
    [
        {"temperature": "hot"},
        {"top_p": 0},
        {"top_k": 1.5},
        {"min_p": 2},
        {"eos_token_id": ["a"]},
        {"repetition_penalty": float("nan")},
    ],
)
def test_generation_defaults_bad_value_gives_checkpoint_error_with_its_name(raw):
    with pytest.raises(CheckpointError, match=next(iter(raw))):
        GenerationDefaults.from_hf(raw, "file")

"""The demo model's tokenizer and grammars."""

import pytest

from qwen3_a8w8.text.grammar_compiler import GrammarCompiler
from qwen3_a8w8.text.tokenizer import Tokenizer
from tests.support.grammars import DEMO, EOS, PADDED_VOCAB


@pytest.fixture(scope="session")
def demo_tokenizer():
    return Tokenizer.from_directory(DEMO)


@pytest.fixture(scope="session")
def grammar_compiler():
    compiler = GrammarCompiler(DEMO, vocab_size=PADDED_VOCAB, eos_token_ids=EOS)
    yield compiler
    compiler.close()

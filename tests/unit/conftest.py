"""Checkpoints to spoil, one of each kind, made once; the demo model's tokenizer and grammars."""

import shutil

import pytest

from qwen3_a8w8.text.grammar_compiler import GrammarCompiler
from qwen3_a8w8.text.tokenizer import Tokenizer
from tests.checkpoints import make_compressed_qwen3, make_random_qwen3
from tests.grammars import DEMO, EOS, PADDED_VOCAB


@pytest.fixture(scope="session")
def masters(tmp_path_factory):
    """One checkpoint of each kind; tests work on copies."""
    root = tmp_path_factory.mktemp("masters")
    make_random_qwen3(root / "float")
    make_random_qwen3(root / "sharded", max_shard_size="600KB")
    make_compressed_qwen3(root / "w8a8", tied=False)
    return root


@pytest.fixture
def copy_of(masters, tmp_path):
    def make(kind):
        return shutil.copytree(masters / kind, tmp_path / kind)

    return make


@pytest.fixture(scope="session")
def demo_tokenizer():
    return Tokenizer.from_directory(DEMO)


@pytest.fixture(scope="session")
def grammar_compiler():
    compiler = GrammarCompiler(DEMO, vocab_size=PADDED_VOCAB, eos_token_ids=EOS)
    yield compiler
    compiler.close()

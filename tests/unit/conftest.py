"""Fixtures of the unit tests."""

from __future__ import annotations

import pytest

from qwen3_a8w8.text.tokenizer import Tokenizer
from tests.text_fixtures import write_tokenizer_files


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory):
    return write_tokenizer_files(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def tokenizer(tokenizer_dir):
    return Tokenizer.from_directory(tokenizer_dir)

"""Checkpoints to spoil, one of each kind, made once."""

import shutil

import pytest

from tests.support.checkpoints import make_compressed_qwen3, make_random_qwen3


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

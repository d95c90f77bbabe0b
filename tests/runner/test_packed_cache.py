"""Packed weights on disk: the same results, and never a file that isn't what it should be."""

import errno
import logging
import multiprocessing
from dataclasses import replace

import pytest
import torch

from qwen3_a8w8.checkpoint.checkpoint import open_checkpoint
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.errors import ConfigError
from qwen3_a8w8.kernels import packed_file
from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from qwen3_a8w8.kernels.reference import ReferenceBackend
from qwen3_a8w8.runner import model_runner, packed_cache
from qwen3_a8w8.runner.model_runner import ModelRunner
from qwen3_a8w8.runner.packed_cache import AUTO, CACHE_VARIABLE, PackedCache
from qwen3_a8w8.runner.warm_up import MAX_PREFILL_TOKENS
from tests.support.checkpoints import make_random_qwen3
from tests.support.runners import all_logits, load_through_cache

IDS = [5, 77, 300, 12, 9]
CONFIG = EngineConfig(block_size=16, num_kv_blocks=17, max_model_len=256)


def cache_at(directory, **options):
    return PackedCache(directory, min_bytes=0, **options)


def logits_with(model, cache, backend=None, config=CONFIG):
    with open_checkpoint(model) as checkpoint:
        runner = ModelRunner(checkpoint, config, backend or CpuBackend(num_threads=2), cache)
    try:
        return all_logits(runner, IDS)
    finally:
        runner.close()


def packed_files(directory):
    return sorted(directory.glob("*.packed"))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A tied and an untied model."""
    paths = {}
    for is_tied in (True, False):
        paths[is_tied] = tmp_path_factory.mktemp("model")
        make_random_qwen3(paths[is_tied], tied=is_tied, seed=3)
    return paths


@pytest.fixture(scope="module")
def plain_logits(models):
    return {is_tied: logits_with(path, None) for is_tied, path in models.items()}


@pytest.fixture
def packed(models, tmp_path):
    """A good packed file of the tied model."""
    logits_with(models[True], cache_at(tmp_path))
    (path,) = packed_files(tmp_path)
    return path


@pytest.mark.parametrize("is_tied", [True, False])
def test_packing_and_mapping_give_the_same_bits_as_no_cache(
    models, plain_logits, tmp_path, is_tied
):
    first = logits_with(models[is_tied], cache_at(tmp_path))
    (path,) = packed_files(tmp_path)
    written = path.stat()
    second = logits_with(models[is_tied], cache_at(tmp_path))
    assert torch.equal(first, plain_logits[is_tied])
    assert torch.equal(second, plain_logits[is_tied])
    assert path.stat().st_ino == written.st_ino
    assert path.stat().st_mtime_ns == written.st_mtime_ns


def test_file_that_is_read_gives_the_same_bits_and_is_no_free_memory(
    models, plain_logits, packed, tmp_path, caplog
):
    cache = replace(cache_at(tmp_path), use_mmap=False)
    with caplog.at_level(logging.INFO):
        assert torch.equal(logits_with(models[True], cache), plain_logits[True])
    assert f"{packed}: read and checked in" in caplog.text
    with open_checkpoint(models[True]) as checkpoint:
        runner = ModelRunner(checkpoint, CONFIG, CpuBackend(num_threads=2), cache)
    assert runner.device.packed_memory.nbytes == packed.stat().st_size
    assert runner.device.mapped_bytes == 0
    runner.close()


def test_copy_that_does_not_fit_is_an_error_with_a_remedy(models, packed, tmp_path, monkeypatch):
    def no_memory(*args):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(packed_file.mmap, "mmap", no_memory)
    cache = replace(cache_at(tmp_path), use_mmap=False)
    with pytest.raises(ConfigError, match=r"bytes can't be had.* set use_mmap to true"):
        logits_with(models[True], cache)


def test_tied_lm_head_is_stored_once(packed):
    entries = packed_file.PackedFile(packed).entries
    assert entries["lm_head"] == entries["embed_tokens"]


def test_another_context_length_uses_the_same_file(models, packed, tmp_path):
    inode = packed.stat().st_ino
    logits_with(
        models[True],
        cache_at(tmp_path),
        config=replace(CONFIG, num_kv_blocks=33, max_model_len=512),
    )
    assert packed_files(tmp_path) == [packed]
    assert packed.stat().st_ino == inode


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(bytes(data))


def table_offset(path):
    return path.read_bytes().index(b'{"identity"')


def weight_offset(path):
    return packed_file.PackedFile(path).entries["layers.1.down_proj.w_q"].offset


DAMAGES = {
    "magic": (lambda path: flip(path, 0), "isn't a packed file"),
    "preamble": (lambda path: flip(path, 17), "preamble is damaged"),
    "unused byte of the preamble": (lambda path: flip(path, 2000), "preamble is damaged"),
    "table": (lambda path: flip(path, table_offset(path) + 30), "table is damaged"),
    "weight": (
        lambda path: flip(path, weight_offset(path) + 4321),
        "layers.1.down_proj.w_q is damaged",
    ),
    "cut short": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "expected"),
    "cut to the preamble": (lambda path: path.write_bytes(path.read_bytes()[:4096]), "expected"),
    "cut inside the preamble": (lambda path: path.write_bytes(path.read_bytes()[:50]), "cut short"),
    "empty": (lambda path: path.write_bytes(b""), "isn't a packed file"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"x"), "expected"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_file_is_reported_and_made_again(
    models, plain_logits, packed, tmp_path, caplog, damage
):
    good = packed.read_bytes()
    spoil, message = DAMAGES[damage]
    spoil(packed)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(logits_with(models[True], cache_at(tmp_path)), plain_logits[True])
    assert message in caplog.text
    assert "packing again" in caplog.text
    assert packed.read_bytes() == good
    assert not list(tmp_path.glob(".*.partial"))


def test_changed_checkpoint_replaces_its_file(plain_logits, tmp_path, caplog):
    model, directory = tmp_path / "model", tmp_path / "cache"
    make_random_qwen3(model, seed=3)
    assert torch.equal(logits_with(model, cache_at(directory)), plain_logits[True])
    make_random_qwen3(model, seed=4)
    with caplog.at_level(logging.WARNING):
        changed = logits_with(model, cache_at(directory))
    assert "written for another checkpoint" in caplog.text
    assert torch.equal(changed, logits_with(model, None))
    assert not torch.equal(changed, plain_logits[True])
    assert len(packed_files(directory)) == 1


@pytest.mark.parametrize("attribute", ["packed_layout", "version"])
def test_file_of_another_layout_or_version_is_not_used(
    models, plain_logits, packed, tmp_path, monkeypatch, caplog, attribute
):
    backend = CpuBackend(num_threads=2)
    if attribute == "version":
        monkeypatch.setattr(packed_cache, "__version__", "0.0.0-other")
    else:
        backend.packed_layout = "other"
    with caplog.at_level(logging.WARNING):
        logits = logits_with(models[True], cache_at(tmp_path), backend)
    assert torch.equal(logits, plain_logits[True])
    if attribute == "version":
        assert "written for another version" in caplog.text
    else:
        assert len(packed_files(tmp_path)) == 2


def test_two_processes_at_once_make_one_good_file(models, plain_logits, tmp_path):
    # Children of a process that has imported what they need, and has no threads.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.runners"])
    barrier, results = context.Barrier(2), context.Queue()
    children = [
        context.Process(
            target=load_through_cache, args=(models[True], tmp_path, IDS, barrier, results)
        )
        for _ in range(2)
    ]
    for child in children:
        child.start()
    # What they send fits a pipe's buffer, so they end before it is read; one that fails shows.
    for child in children:
        child.join(timeout=240)
    assert [child.exitcode for child in children] == [0, 0]
    found = [results.get() for _ in children]
    assert found == [plain_logits[True].numpy().tobytes()] * 2
    (path,) = packed_files(tmp_path)
    packed_file.PackedFile(path)
    assert not list(tmp_path.glob(".*.partial"))


def test_file_left_by_a_killed_process_is_removed(models, tmp_path):
    logits_with(models[True], cache_at(tmp_path))
    (path,) = packed_files(tmp_path)
    path.unlink()
    leftover = tmp_path / f".{path.name}.0123abcd.partial"
    leftover.write_bytes(b"half")
    logits_with(models[True], cache_at(tmp_path))
    assert not leftover.exists()


def test_chosen_directory_that_cannot_be_used_is_an_error(models, tmp_path):
    (tmp_path / "file").write_text("")
    cache = cache_at(tmp_path / "file" / "cache", is_required=True)
    with pytest.raises(ConfigError, match=r"packed weights can't be stored in .*file/cache"):
        logits_with(models[True], cache)


def test_default_directory_that_cannot_be_used_is_a_warning(models, plain_logits, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        logits = logits_with(models[True], cache_at(tmp_path / "file" / "cache"))
    assert torch.equal(logits, plain_logits[True])
    assert f"Set {CACHE_VARIABLE}" in caplog.text


def test_disk_without_room_is_reported_before_anything_is_written(
    models, tmp_path, monkeypatch, caplog
):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(packed_cache.shutil, "disk_usage", lambda path: usage)
    with caplog.at_level(logging.WARNING):
        logits_with(models[True], cache_at(tmp_path))
    assert "1000 are free there" in caplog.text
    assert not packed_files(tmp_path)


def test_mapped_weights_are_not_taken_for_free_memory(models, packed, tmp_path, monkeypatch):
    free_bytes = 8 << 20
    monkeypatch.setattr(model_runner, "free_host_memory_bytes", lambda: free_bytes)
    config = replace(
        CONFIG,
        num_kv_blocks=None,
        kv_memory_fraction=0.5,
        max_model_len=2048,
        prefill_chunk_tokens=MAX_PREFILL_TOKENS,
    )
    with open_checkpoint(models[True]) as checkpoint:
        runner = ModelRunner(checkpoint, config, CpuBackend(num_threads=2), cache_at(tmp_path))
    runner.close()
    # 2 layers, 2 KV heads, 16 tokens; 128 values and a scale, of K and V.
    block_bytes = 2 * 2 * 16 * 2 * (128 + 4)
    expected = (free_bytes - packed.stat().st_size) // 2 // block_bytes
    assert runner.capabilities.num_kv_blocks == expected


def test_small_model_is_not_cached(models, tmp_path):
    logits_with(models[True], PackedCache(tmp_path))
    assert not list(tmp_path.iterdir())


def test_backend_without_mappable_weights_is_not_cached(models, tmp_path):
    logits_with(models[True], cache_at(tmp_path), ReferenceBackend())
    assert not list(tmp_path.iterdir())


def test_setting_names_the_directory(tmp_path, monkeypatch):
    assert PackedCache.from_setting(None) is None
    assert PackedCache.from_setting(tmp_path) == PackedCache(tmp_path, is_required=True)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "x"))
    assert PackedCache.from_setting(AUTO) == PackedCache(tmp_path / "x")
    monkeypatch.delenv(CACHE_VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert PackedCache.from_setting(AUTO).directory == tmp_path / ".cache/qwen3-a8w8/packed"


@pytest.mark.parametrize(("share", "warns"), [(0.0, False), (0.5, True), (0.96, False)])
def test_file_partly_in_huge_pages_is_logged_with_the_remedy(
    share, warns, models, packed, monkeypatch, caplog
):
    monkeypatch.setattr(
        packed_file.PackedFile, "huge_page_bytes", lambda file: int(share * file.nbytes)
    )
    logits_with(models[True], cache_at(packed.parent))
    assert ("compact_memory" in caplog.text) == warns
    assert ("only 50 % of it" in caplog.text) == warns

"""The packed file format: what goes in comes out, wherever huge pages begin and end."""

import hashlib
import struct

import pytest
import torch

from qwen3_a8w8.kernels import host_memory, packed_file
from qwen3_a8w8.kernels.packed_file import PackedFile, PackedFileError, PackedFileWriter

HUGE = 2 << 20
SIZES = [1, 4096, 100, HUGE - 8192, HUGE, HUGE + 1, 3 * HUGE + 77, 5, 2 * HUGE - 3]


@pytest.fixture
def written(tmp_path):
    gen = torch.Generator().manual_seed(0)
    tensors = {
        f"c{i}": torch.randint(0, 256, (size,), generator=gen, dtype=torch.uint8)
        for i, size in enumerate(SIZES)
    }
    path = tmp_path / "file"
    with PackedFileWriter(path) as writer:
        for i, (name, tensor) in enumerate(tensors.items()):
            writer.add(name, tensor, checksum=2**63 + i)
        writer.add_alias("again", "c5")
        writer.finish({"made": "from this"})
    return path, tensors


@pytest.mark.parametrize("use_mmap", [True, False])
def test_constants_of_any_size_come_back_page_aligned(written, use_mmap, monkeypatch):
    monkeypatch.setattr(
        host_memory, "_PIECE_BYTES", 300_000
    )  # several pieces, the last one shorter
    path, tensors = written
    file = PackedFile(path, use_mmap=use_mmap)
    assert file.identity == {"made": "from this"}
    assert file.nbytes == path.stat().st_size < sum(SIZES) + 4096 * (len(SIZES) + 3)
    for i, (name, tensor) in enumerate(tensors.items()):
        entry = file.entries[name]
        assert entry.offset % 4096 == 0
        assert entry.checksum == 2**63 + i
        found = file.memory[entry.offset : entry.offset + entry.nbytes]
        assert bytes(found) == bytes(tensor.numpy())
        assert file.address(name) == file.memory.ctypes.data + entry.offset
    assert file.entries["again"] == file.entries["c5"]
    assert not file.memory.flags.writeable


def test_file_cut_while_it_is_read_is_refused(written, monkeypatch):
    path, _ = written
    nbytes = path.stat().st_size
    monkeypatch.setattr(
        packed_file.os, "preadv", lambda fd, buffers, begin: 0 if begin else len(buffers[0])
    )
    monkeypatch.setattr(host_memory, "_PIECE_BYTES", 1 << 20)
    with pytest.raises(PackedFileError, match=rf"ends at byte 1048576 of {nbytes}"):
        PackedFile(path, use_mmap=False)


def test_file_that_was_never_finished_is_refused(tmp_path):
    path = tmp_path / "file"
    with PackedFileWriter(path) as writer:
        writer.add("c", torch.zeros(3 * HUGE, dtype=torch.uint8), 0)
    with pytest.raises(PackedFileError, match="isn't a packed file"):
        PackedFile(path)


def test_file_of_another_format_version_is_refused(written):
    path, _ = written
    data = bytearray(path.read_bytes())
    data[8:16] = struct.pack("<Q", 99)
    data[4064:4096] = hashlib.sha256(data[:4064]).digest()
    path.write_bytes(data)
    with pytest.raises(PackedFileError, match="format version is 99, expected 1"):
        PackedFile(path)


def test_existing_file_is_not_overwritten(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError):
        PackedFileWriter(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_huge_pages_are_counted_for_the_files_own_mapping(written, tmp_path, monkeypatch):
    file = PackedFile(written[0])
    begin = file.memory.ctypes.data
    mappings = tmp_path / "smaps"
    monkeypatch.setattr(packed_file, "_MAPPINGS", mappings)
    mappings.write_text(
        "1000-2000 r--s 00000000 fe:00 1    /other\nRss: 4 kB\nFilePmdMapped:      99 kB\n"
        f"{begin:x}-{begin + file.nbytes:x} r--s 00000000 fe:00 2    {written[0]}\n"
        "Rss:               20480 kB\nFilePmdMapped:   10240 kB\nVmFlags: rd\n"
        "ffff0000-ffff1000 r--s 00000000 fe:00 1    /other\nFilePmdMapped:      99 kB\n"
    )
    assert file.huge_page_bytes() == 10 << 20
    mappings.unlink()
    assert file.huge_page_bytes() == 0

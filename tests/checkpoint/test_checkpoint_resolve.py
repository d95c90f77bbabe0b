"""What a user may call a model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import qwen3_a8w8
from qwen3_a8w8.checkpoint import resolve
from qwen3_a8w8.checkpoint.resolve import resolve_model
from qwen3_a8w8.errors import CheckpointError


def test_directory_is_taken_as_it_is(tmp_path):
    assert resolve_model(str(tmp_path)) == tmp_path


def test_demo_is_the_directory_in_the_package():
    directory = resolve_model("demo")
    assert directory == Path(qwen3_a8w8.__file__).parent / "demo"
    assert (directory / "model.safetensors").is_file()


def test_demo_missing_from_the_installation_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(resolve, "__file__", str(tmp_path / "checkpoint" / "resolve.py"))
    with pytest.raises(CheckpointError, match="demo model is missing from this installation"):
        resolve_model("demo")


def test_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert resolve_model("~/model") == tmp_path / "model"


def test_relative_directory_that_looks_like_a_hub_id_is_taken_first(tmp_path, monkeypatch):
    (tmp_path / "Qwen" / "Qwen3-0.6B").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("Qwen/Qwen3-0.6B").resolve() == tmp_path / "Qwen" / "Qwen3-0.6B"


@pytest.mark.parametrize("model", ["/no/such/dir", "./nothing", "nothing", "a/b/c", ".."])
def test_path_that_does_not_exist_is_refused_listing_what_is_accepted(tmp_path, monkeypatch, model):
    monkeypatch.chdir(tmp_path)
    if model == "..":
        model = "../no-such-sibling-directory"
    with pytest.raises(CheckpointError) as caught:
        resolve_model(model)
    message = str(caught.value)
    assert repr(model) in message
    assert "no such directory" in message
    assert "'demo'" in message
    assert "hub id" in message


@pytest.mark.parametrize("model", ["", "  "])
def test_empty_name_is_refused(model):
    with pytest.raises(CheckpointError, match="accepted are"):
        resolve_model(model)


def test_file_is_refused(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(CheckpointError, match="is a file, expected the directory"):
        resolve_model(str(file))


def test_hub_id_without_the_client_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match=r"pip install -e '.\[hub\]'"):
        resolve_model("Qwen/Qwen3-0.6B")


def test_hub_id_when_offline_and_not_cached_says_so(tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError) as caught:
        resolve_model("Qwen/Qwen3-0.6B")
    message = str(caught.value)
    assert "'Qwen/Qwen3-0.6B'" in message
    assert "couldn't be loaded from the hub" in message
    assert "accepted are" in message
    assert "\n" not in message


def test_hub_id_gives_the_downloaded_directory_without_pickled_files(tmp_path, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    calls = []

    def download(repo_id, *, allow_patterns):
        calls.append((repo_id, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model("Qwen/Qwen3-0.6B") == tmp_path
    [(repo_id, patterns)] = calls
    assert repo_id == "Qwen/Qwen3-0.6B"
    assert "*.safetensors" in patterns
    assert not any(".bin" in pattern or pattern == "*" for pattern in patterns)

"""These tests run in processes of their own, see `tests/support/npu_emulation.py`.

By hand: PYTHONPATH=tools/npu_emulation python -m pytest tests/kernels/npu/emulated
"""

import importlib.util

import pytest

_spec = importlib.util.find_spec("torch_npu")
IS_EMULATED = _spec is not None and "npu_emulation" in (_spec.origin or "")

collect_ignore_glob = [] if IS_EMULATED else ["test_*.py"]


@pytest.fixture
def emulated():
    """The options of the emulated device; put back after the test."""
    import dataclasses

    from torch_npu._emulation.options import options

    before = dataclasses.replace(options)
    yield options
    for field in dataclasses.fields(options):
        setattr(options, field.name, getattr(before, field.name))

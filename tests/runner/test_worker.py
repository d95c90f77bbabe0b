import weakref

import numpy as np
import pytest
import torch

from qwen3_a8w8.errors import SignatureError
from qwen3_a8w8.kernels.signature import FLOAT32, INT8, INT32
from qwen3_a8w8.runner.worker import Worker


@pytest.fixture
def worker():
    worker = Worker("cpu")
    yield worker
    worker.close()


def test_alloc_gives_zeroed_memory_of_the_dtype(worker):
    tensor = worker.alloc((3, 5), INT32).to_continuous_tensor()
    assert tensor.dtype == torch.int32
    assert torch.equal(tensor, torch.zeros(3, 5, dtype=torch.int32))


def test_num_bytes_follows_from_the_dtype(worker):
    assert worker.alloc((3, 5), INT8).num_bytes == 15
    assert worker.alloc((3, 5), FLOAT32).num_bytes == 60
    assert worker.num_bytes == 75


def test_view_aliases_the_same_memory(worker):
    whole = worker.alloc((4, 6), FLOAT32)
    part = whole.view(2, 3, offset=12)
    part.to_continuous_tensor().fill_(7)
    expected = torch.zeros(24)
    expected[12:18] = 7
    assert torch.equal(whole.to_continuous_tensor().flatten(), expected)


def test_view_of_a_view_adds_offsets(worker):
    whole = worker.alloc((24,), INT32)
    worker.upload(whole, np.arange(24, dtype=np.int32))
    inner = whole.view(12, offset=6).view(2, 2, offset=3)
    assert inner.to_continuous_tensor().tolist() == [[9, 10], [11, 12]]


@pytest.mark.parametrize(("shape", "offset"), [((25,), 0), ((1,), 24), ((2, 3), -1)])
def test_view_outside_the_tensor_is_refused(worker, shape, offset):
    with pytest.raises(SignatureError, match="but the tensor of shape"):
        worker.alloc((24,), INT32).view(*shape, offset=offset)


def test_upload_of_another_dtype_or_too_many_is_refused(worker):
    target = worker.alloc((4,), INT32)
    with pytest.raises(SignatureError, match="float32 don't fit"):
        worker.upload(target, np.zeros(4, np.float32))
    with pytest.raises(SignatureError, match="5 elements"):
        worker.upload(target, np.zeros(5, np.int32))


def test_freed_tensor_and_its_views_cannot_be_used(worker):
    tensor = worker.alloc((4,), INT32)
    view = tensor.view(2)
    worker.free(tensor)
    worker.free(tensor)
    assert worker.num_bytes == 0
    with pytest.raises(SignatureError, match="was freed"):
        view.to_continuous_tensor()


def test_close_frees_everything_and_may_be_repeated(worker):
    tensor = worker.alloc((4,), INT32)
    worker.close()
    worker.close()
    with pytest.raises(SignatureError, match="was freed"):
        tensor.to_continuous_tensor()
    with pytest.raises(SignatureError, match="worker is closed"):
        worker.alloc((1,), INT32)


class Callable:
    """Stands for a compiled callable: adds one to its argument."""

    def __init__(self):
        self.num_checks = 0

    def check(self, host, x):
        assert host is None
        self.num_checks += 1
        return lambda: x.add_(1)


def test_prepared_call_checks_its_arguments_once(worker):
    compiled, tensor = Callable(), worker.alloc((2,), INT32)
    call = worker.prepare(worker.register(compiled), {"x": tensor})
    assert compiled.num_checks == 0
    call()
    call()
    assert tensor.to_continuous_tensor().tolist() == [2, 2]
    assert compiled.num_checks == 1


def test_prepared_call_keeps_no_freed_memory(worker):
    tensor = worker.alloc((2,), INT32)
    call = worker.prepare(worker.register(Callable()), {"x": tensor})
    call()
    memory = weakref.ref(tensor.to_continuous_tensor())
    worker.free(tensor)
    assert memory() is None
    with pytest.raises(SignatureError, match="was freed"):
        call()


def test_prepared_call_after_close_is_refused(worker):
    call = worker.prepare(worker.register(Callable()), {"x": worker.alloc((2,), INT32)})
    call()
    worker.close()
    with pytest.raises(SignatureError, match="worker is closed"):
        call()

import numpy as np
import pytest

from qwen3_a8w8.kernels.signature import FLOAT32, INT32, INT64
from qwen3_a8w8.runner.packing import GrowingInput, InputBlock
from qwen3_a8w8.runner.worker import Worker

LAYOUT = {"ids": (INT32, (3,)), "seeds": (INT64, (2,)), "table": (FLOAT32, (2, 2))}


class FarWorker(Worker):
    """A worker whose memory the host can't write, as that of a device of its own."""

    def host_array(self, tensor):
        return None


@pytest.mark.parametrize("make_worker", [Worker, FarWorker])
def test_block_gives_the_device_what_was_written_by_name(make_worker):
    worker = make_worker("cpu")
    block = InputBlock(worker, LAYOUT)
    block.arrays["ids"][:] = [1, 2, 3]
    block.arrays["seeds"][1] = 2**40
    block.arrays["table"][:, 1] = 0.5
    block.upload()
    values = {name: t.to_continuous_tensor().tolist() for name, t in block.tensors.items()}
    assert values == {"ids": [1, 2, 3], "seeds": [0, 2**40], "table": [[0, 0.5], [0, 0.5]]}
    block.free()
    assert worker.num_bytes == 0


def test_growing_input_keeps_its_tensor_until_the_list_is_too_long():
    worker = Worker("cpu")
    values = GrowingInput(worker, INT32)
    first = values.tensor
    assert not values.write([])
    assert not values.write(range(64))
    assert values.tensor is first
    assert first.to_continuous_tensor().tolist() == list(range(64))
    assert values.write(np.arange(200))
    assert values.tensor.to_continuous_tensor()[:200].tolist() == list(range(200))
    assert worker.num_bytes == 256 * 4


def test_rows_are_selected_on_the_device_where_the_index_is_not_negative():
    worker = Worker("cpu", is_host_memory=False)
    assert worker.host_array(worker.alloc((1,), INT32)) is None
    target, source = worker.alloc((3, 2), INT32), worker.alloc((4, 2), INT32)
    index = worker.alloc((3,), INT32)
    worker.upload(target, np.arange(6, dtype=np.int32))
    worker.upload(source, np.arange(100, 108, dtype=np.int32))
    worker.upload(index, np.asarray([3, -1, 0], np.int32))
    worker.select_rows(target, source, index)
    assert target.to_continuous_tensor().tolist() == [[106, 107], [2, 3], [100, 101]]

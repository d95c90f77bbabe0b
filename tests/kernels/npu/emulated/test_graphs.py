"""The recording double of graphs: what a device would compute, and what it would not."""

import math

import pytest
import torch
import torch_npu
from torch_npu._emulation.refusals import ContractError
from torch_npu.npu import graphs

from tests.kernels.npu.emulated.support import BF16, int8s, random

BLOCK, D = 128, 128


@pytest.fixture(autouse=True)
def journal():
    graphs.journal.clear()
    graphs._pending.clear()
    return graphs.journal


class Decode:
    """One layer of a decode with fixed addresses: scatter K and V, attend, multiply."""

    def __init__(self):
        shape = (3, 2, BLOCK, D)
        self.q, self.w = random(2, 4, 1, D), random(512, 32, seed=1)
        self.new_k, self.new_v = int8s(4, 1, D, seed=2), int8s(4, 1, D, seed=3)
        self.k, self.v = int8s(*shape, seed=4), int8s(*shape, seed=5)
        self.scale = torch.full(shape[:3], 0.01)
        self.table = torch.tensor([[1, 0], [2, 0]], dtype=torch.int32)
        self.slots = torch.tensor([300, 428, 556, 684], dtype=torch.int32)  # offset 44 of each head

    def attend(self, lengths):
        return torch_npu.npu_fused_infer_attention_score(
            self.q,
            self.k,
            self.v,
            block_table=self.table,
            actual_seq_lengths_kv=lengths,
            num_heads=4,
            num_key_value_heads=2,
            scale=1 / math.sqrt(D),
            input_layout="BNSD",
            block_size=BLOCK,
            key_antiquant_mode=5,
            value_antiquant_mode=5,
            key_antiquant_scale=self.scale,
            value_antiquant_scale=self.scale,
        )[0]

    def step(self, lengths):
        torch_npu.npu_scatter_pa_kv_cache(
            self.new_k,
            self.new_v,
            self.k.view(-1, BLOCK, 1, D),
            self.v.view(-1, BLOCK, 1, D),
            self.slots,
            cache_mode="Norm",
        )
        return self.attend(lengths).view(2, 512) @ self.w


def captured(decode, lengths=(1, 1), is_auto=True):
    graph = torch_npu.npu.NPUGraph()
    with torch_npu.npu.graph(graph, auto_dispatch_capture=is_auto):
        out = decode.step(list(lengths))
    return graph, out


def lengths_input(*lengths):
    return [{"actual_seq_lengths_kv": list(lengths)}]


def test_capture_computes_nothing():
    decode = Decode()
    before = decode.k.clone()
    _, out = captured(decode)
    assert out.isnan().all()
    assert torch.equal(decode.k, before)


def test_update_and_replay_give_the_eager_bits(journal):
    decode, eager = Decode(), Decode()
    graph, out = captured(decode)
    graph.update(cpu_update_input=lengths_input(45, 45))
    graph.replay()
    torch_npu.npu.synchronize()
    assert torch.equal(out, eager.step([45, 45]))
    assert torch.equal(decode.k, eager.k)
    assert [kind for kind, _ in journal] == ["capture", "update", "replay"]
    assert journal[1][1] == [{"actual_seq_lengths_kv": [45, 45]}]


def test_update_after_replay_is_waited_for():
    decode, eager = Decode(), Decode()
    graph, out = captured(decode)
    graph.replay()
    assert out.isnan().all()  # attention waits for its lengths
    graph.update(cpu_update_input=lengths_input(45, 45))
    assert torch.equal(out, eager.step([45, 45]))


def test_replay_reads_new_values_at_the_old_addresses():
    decode, eager = Decode(), Decode()
    graph, out = captured(decode)
    for step in range(3):
        decode.q.copy_(random(2, 4, 1, D, seed=10 + step))
        eager.q.copy_(decode.q)
        graph.update(cpu_update_input=lengths_input(45, 46 + step))
        graph.replay()
        assert torch.equal(out, eager.step([45, 46 + step]))


def test_replay_does_not_see_tensors_at_new_addresses():
    decode, eager = Decode(), Decode()
    graph, out = captured(decode)
    kept, decode.q = decode.q, random(2, 4, 1, D, seed=10)
    eager.q = decode.q
    graph.update(cpu_update_input=lengths_input(45, 45))
    graph.replay()
    assert not torch.equal(out, eager.step([45, 45]))
    eager.q = kept
    assert torch.equal(out, eager.step([45, 45]))


def test_replay_after_an_input_was_freed_is_an_error():
    decode = Decode()
    graph, _ = captured(decode)
    del decode.w
    graph.update(cpu_update_input=lengths_input(45, 45))
    with pytest.raises(ContractError, match=r"freed memory.*\(512, 32\)"):
        graph.replay()


def test_replay_after_an_output_was_freed_is_an_error():
    x, y = random(4, 8), torch.zeros(4, 8, dtype=BF16)
    graph = torch_npu.npu.NPUGraph()
    with torch_npu.npu.graph(graph):
        y.copy_(x * 2)
    graph.replay()
    assert torch.equal(y, x * 2)
    del y
    with pytest.raises(ContractError, match="freed memory"):
        graph.replay()


def test_replay_without_an_update_hangs():
    decode = Decode()
    graph, _ = captured(decode)
    graph.update(cpu_update_input=lengths_input(45, 45))
    graph.replay()
    torch_npu.npu.synchronize()
    graph.replay()
    with pytest.raises(ContractError, match="waits for an event"):
        torch_npu.npu.synchronize()


def test_old_lengths_give_another_result():
    decode, eager = Decode(), Decode()
    graph, out = captured(decode)
    graph.update(cpu_update_input=lengths_input(45, 45))
    graph.replay()
    assert not torch.equal(out, eager.step([45, 100]))


def test_capture_without_auto_dispatch_keeps_its_lengths_and_refuses_updates():
    decode, eager = Decode(), Decode()
    graph, out = captured(decode, lengths=(45, 45), is_auto=False)
    with pytest.raises(RuntimeError, match="auto_dispatch_capture=True"):
        graph.update(cpu_update_input=lengths_input(46, 46))
    graph.replay()
    assert torch.equal(out, eager.step([45, 45]))


def test_update_needs_one_input_or_one_per_attention():
    decode = Decode()
    graph, _ = captured(decode)
    with pytest.raises(RuntimeError, match="1 operators"):
        graph.update(cpu_update_input=lengths_input(1, 1) * 2)


def test_update_of_a_name_that_was_not_passed_is_ignored():
    decode, eager = Decode(), Decode()
    graph, out = captured(decode, lengths=(45, 45))
    graph.update(cpu_update_input=[{"actual_seq_lengths": [1, 1]}])
    graph.replay()
    assert torch.equal(out, eager.step([45, 45]))


def test_capture_refuses_what_waits_for_the_device():
    x = random(4)
    graph = torch_npu.npu.NPUGraph()
    with pytest.raises(RuntimeError, match="107027"), torch_npu.npu.graph(graph):
        float(x.sum())
    assert not torch_npu.npu.is_current_stream_capturing()


def test_graph_is_captured_once_until_reset():
    decode = Decode()
    graph, _ = captured(decode)
    with pytest.raises(RuntimeError, match="captured before"):
        graph.capture_begin()
    graph.reset()
    with torch_npu.npu.graph(graph):
        decode.q * 2
    graph.replay()


def test_task_group_is_updated_by_the_out_form(journal):
    decode, eager = Decode(), Decode()
    stream = torch_npu.npu.current_stream()
    event = torch.npu.ExternalEvent()
    out, lse = torch.empty_like(decode.q), torch.empty(1)

    def call(lengths):
        torch_npu.npu_fused_infer_attention_score.out(
            decode.q,
            decode.k,
            decode.v,
            block_table=decode.table,
            actual_seq_lengths_kv=lengths,
            num_heads=4,
            num_key_value_heads=2,
            scale=1 / math.sqrt(D),
            input_layout="BNSD",
            block_size=BLOCK,
            key_antiquant_mode=5,
            value_antiquant_mode=5,
            key_antiquant_scale=decode.scale,
            value_antiquant_scale=decode.scale,
            workspace=None,
            out=[out, lse],
        )

    graph = torch_npu.npu.NPUGraph()
    out.zero_()
    with torch_npu.npu.graph(graph):
        event.wait(stream)
        event.reset(stream)
        torch.npu.graph_task_group_begin(stream)
        call([1, 1])
        handle = torch.npu.graph_task_group_end(stream)
    assert not out.any()
    for lengths in ([45, 7], [46, 8]):
        graph.replay()
        torch.npu.graph_task_update_begin(stream, handle)
        call(lengths)
        torch.npu.graph_task_update_end(stream)
        event.record(stream)
        torch_npu.npu.synchronize()
        assert torch.equal(out, eager.attend(lengths))
    graph.replay()
    with pytest.raises(ContractError, match="waits for an event"):
        torch_npu.npu.synchronize()
    kinds = [kind for kind, _ in journal]
    assert kinds == ["capture", "replay", "update", "replay", "update", "replay"]


def test_device_without_graphs_says_so(emulated):
    emulated.graph = False
    with pytest.raises(RuntimeError, match="207000"):
        torch_npu.npu.NPUGraph()


def test_views_and_in_place_ops_are_replayed():
    x, y = random(4, 8), torch.zeros(8, dtype=BF16)
    graph = torch_npu.npu.NPUGraph()
    with torch_npu.npu.graph(graph):
        part = x.view(2, 16)[1].view(2, 8)
        y.copy_(part[0] + part[1])
        y.mul_(2)
    assert not y.any()
    for seed in (1, 2):
        x.copy_(random(4, 8, seed=seed))
        graph.replay()
        assert torch.equal(y, (x[2] + x[3]) * 2)

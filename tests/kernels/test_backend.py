import os
import sys
import warnings

import pytest
import torch

from qwen3_a8w8.errors import ConfigError, KernelUnavailableError, SignatureError
from qwen3_a8w8.kernels.cpu.backend import CpuBackend, runnable_isas
from qwen3_a8w8.kernels.cpu.native import load_native
from qwen3_a8w8.kernels.ops import SAMPLE_CONTROLS, Ops
from qwen3_a8w8.kernels.program import Node, Program, Ref, RefKind
from qwen3_a8w8.kernels.signature import FLOAT32, INT8, In, Out, Param, Signature
from tests.kernels.single_op import run_ops


def test_backend_portable_path_runs_everywhere_and_is_last():
    assert runnable_isas()[-1] == "portable"


def test_backend_default_is_the_first_runnable_path():
    backend = CpuBackend(num_threads=1)
    assert backend.name == f"cpu-{runnable_isas()[0]}"
    assert backend.describe() == {"device": "cpu", "isa": runnable_isas()[0], "threads": 1}
    backend.close()


def test_backend_unknown_path_is_refused_with_the_ones_there_are():
    with pytest.raises(KernelUnavailableError, match=r"'sve'.*portable"):
        CpuBackend(isa="sve")


def test_backend_without_threads_is_refused():
    with pytest.raises(ConfigError, match="num_threads is 0"):
        CpuBackend(num_threads=0)


def test_backend_without_native_module_says_how_to_build_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "qwen3_a8w8.kernels.cpu._native", None)
    with pytest.raises(KernelUnavailableError, match="pip install"):
        CpuBackend()


def test_backend_threads_default_to_the_affinity_mask():
    backend = CpuBackend()
    assert 1 <= backend.num_threads <= len(os.sched_getaffinity(0))
    backend.close()


def test_backend_linear_too_wide_for_int32_is_refused():
    ops = Ops("wide", {}, {})
    x_q = ops.argument("x_q", INT8, (1, 70000))
    x_scale = ops.argument("x_scale", FLOAT32, (1,))
    ops.linear(x_q, x_scale, ops.linear_weight("w", 4, 70000))
    params = (Param("x_q", In(INT8, 1, 70000)), Param("x_scale", In(FLOAT32, 1)))
    program = Program(Signature("wide", params), tuple(ops.refs), tuple(ops.nodes))
    backend = CpuBackend(num_threads=1)
    with pytest.raises(SignatureError, match="70000"):
        backend.lower(program)
    backend.close()


def test_backend_takes_the_sampler_inputs_that_the_op_set_has():
    assert sorted(load_native().sample_inputs) == sorted(("logits", *SAMPLE_CONTROLS))


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"op": "no_such_op"}, "no CPU kernel for the op 'no_such_op'"),
        ({"inputs": ()}, r"'copy' doesn't take 0 inputs, 1 outputs and 0 updates"),
        ({"inputs": (7,)}, "a node refers to 7 of 2 refs"),
        ({"attrs": (("slope", 0.5),)}, "slope"),
    ],
)
def test_backend_node_that_no_kernel_fits_is_refused(node, message):
    refs = [Ref(i, RefKind.ARG, name, FLOAT32, (1, 4)) for i, name in enumerate("xy")]
    far = Ref(7, RefKind.ARG, "far", FLOAT32, (1, 4))
    inputs = tuple({0: refs[0], 7: far}[i] for i in node.get("inputs", (0,)))
    bad = Node(node.get("op", "copy"), inputs, (refs[1],), (), node.get("attrs", ()))
    params = (Param("x", In(FLOAT32, 1, 4)), Param("y", Out(FLOAT32, 1, 4)))
    backend = CpuBackend(num_threads=1)
    with pytest.raises((ValueError, TypeError), match=message):
        backend.lower(Program(Signature("bad", params), tuple(refs), (bad,)))
    backend.close()


@pytest.mark.parametrize("num_active", [-1, 5])
def test_backend_live_rows_out_of_range_are_refused(num_active):
    backend = CpuBackend(num_threads=1)
    with pytest.raises(IndexError, match=f"is {num_active}, expected 0 to 4"):
        run_ops(
            backend,
            lambda ops, refs: ops.quantize(refs["x"]),
            {"x": torch.ones(4, 8)},
            num_active=num_active,
        )
    backend.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_backend_works_in_a_forked_child():
    backend = CpuBackend(num_threads=2)
    x = torch.randn(64, 2048)

    def quantise():
        return run_ops(backend, lambda ops, refs: ops.quantize(refs["x"]), {"x": x})

    want = quantise()
    with warnings.catch_warnings():
        # Python 3.12 warns of forking with threads: just what is tried here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        same = all(torch.equal(a, b) for a, b in zip(quantise(), want, strict=True))
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
    backend.close()

import pytest

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.errors import ConfigError, KernelUnavailableError
from qwen3_a8w8.experimental import FLAGS
from qwen3_a8w8.kernels import reference
from qwen3_a8w8.kernels.cpu.backend import CpuBackend, runnable_isas
from qwen3_a8w8.kernels.reference import ReferenceBackend
from qwen3_a8w8.runner.self_check import self_check


@pytest.mark.parametrize("isa", runnable_isas())
@pytest.mark.parametrize("enable", [(), tuple(FLAGS)])
def test_self_check_passes_on_every_path_and_flag(isa, enable):
    backend = CpuBackend(isa=isa, num_threads=2)
    self_check(backend, enable)
    backend.close()


class BrokenBackend(ReferenceBackend):
    """Packs one constant wrongly, as a damaged kernel build might."""

    def pack(self, ref, tensor):
        return -tensor if ref.name == "layers.1.down_proj.w_scale" else tensor


def test_self_check_refuses_kernels_that_are_wrong():
    with pytest.raises(KernelUnavailableError, match=r"logits of prefill .*skip_self_check"):
        self_check(BrokenBackend())


def test_self_check_refuses_kernels_that_give_values_that_are_not_finite(monkeypatch):
    class Broken(ReferenceBackend):
        def pack(self, ref, tensor):
            return tensor * float("nan") if ref.name == "final_norm" else tensor

    with pytest.raises(KernelUnavailableError, match="nan"):
        self_check(Broken())


def test_self_check_refuses_rows_that_depend_on_the_batch(monkeypatch):
    def lm_head(run, node):
        x, weight = map(run.get, node.inputs)
        run.put(node.outputs[0], x @ weight.float().T + 1e-6 * len(x))

    expected = dict(reference._OPS)

    class Dependent(ReferenceBackend):
        def lower(self, program):
            executable = super().lower(program)
            plain = executable.run

            def run(args, dims):
                reference._OPS["lm_head"] = lm_head
                try:
                    plain(args, dims)
                finally:
                    reference._OPS.update(expected)

            executable.run = run
            return executable

    with pytest.raises(KernelUnavailableError, match="depend on the batch"):
        self_check(Dependent())


def test_unknown_flag_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="int8_lm_head"):
        EngineConfig(enable=("int9",))

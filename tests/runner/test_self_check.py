import pytest

from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.errors import ConfigError, KernelUnavailableError
from qwen3_a8w8.experimental import FLAGS, variants
from qwen3_a8w8.kernels.cpu.backend import CpuBackend, runnable_isas
from qwen3_a8w8.kernels.reference import ReferenceBackend
from qwen3_a8w8.kernels.reference_ops import OPS
from qwen3_a8w8.llm import LLM
from qwen3_a8w8.runner import model_runner
from qwen3_a8w8.runner.self_check import self_check


@pytest.mark.parametrize("isa", runnable_isas())
@pytest.mark.parametrize("enable", [*variants(), tuple(FLAGS)])
def test_self_check_passes_on_every_path_and_flag(isa, enable):
    backend = CpuBackend(isa=isa, num_threads=2)
    self_check(backend, enable)
    backend.close()


class BrokenBackend(ReferenceBackend):
    """Packs one constant wrongly, as a damaged kernel build might."""

    def __init__(self, constant="layers.1.down_proj.w_scale"):
        super().__init__()
        self.constant = constant

    def pack(self, ref, tensor):
        return -tensor if ref.name == self.constant else tensor


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

    expected = dict(OPS)

    class Dependent(ReferenceBackend):
        def lower(self, program):
            executable = super().lower(program)
            plain = executable.run

            def run(args, dims):
                OPS["lm_head"] = lm_head
                try:
                    plain(args, dims)
                finally:
                    OPS.update(expected)

            executable.run = run
            return executable

    with pytest.raises(KernelUnavailableError, match="depend on the batch"):
        self_check(Dependent())


class NegatedOp(ReferenceBackend):
    """Negates what one op gives, in decode dispatches of one size only if that is given."""

    def __init__(self, op, num_rows=None):
        super().__init__()
        self.op, self.num_rows = op, num_rows

    def lower(self, program):
        executable = super().lower(program)
        plain, kernel = executable.run, OPS[self.op]

        def negated(run, node):
            kernel(run, node)
            run.put(node.outputs[0], -run.get(node.outputs[0]))

        def run(args, dims):
            is_broken = self.num_rows in (None, dims.get("ROWS"))
            OPS[self.op] = negated if is_broken else kernel
            try:
                plain(args, dims)
            finally:
                OPS[self.op] = kernel

        executable.run = run
        return executable


# For each flag, kernels of which only what it alone uses is broken.
BROKEN = {
    "bf16_kv_cache": lambda: NegatedOp("attention_bf16"),
    "int8_lm_head": lambda: BrokenBackend("lm_head.w_scale"),
    "prompt_lookup": lambda: NegatedOp("attention", num_rows=8),
}


@pytest.mark.parametrize("flag", [name for (name,) in variants()[1:]])
def test_self_check_refuses_a_broken_flag_and_no_other(flag):
    backend = BROKEN[flag]()
    self_check(backend, ())
    with pytest.raises(KernelUnavailableError, match=rf"with {flag}: .*skip_self_check"):
        self_check(backend, (flag,))


def test_start_with_a_broken_flag_is_refused_unless_forced(random_model, monkeypatch):
    backend = BROKEN["bf16_kv_cache"]()
    monkeypatch.setattr(model_runner, "select_backend", lambda device, num_threads, isa: backend)
    settings = {"num_kv_blocks": 8, "max_model_len": 64, "prefill_chunk_tokens": 32}
    LLM(str(random_model), **settings).close()
    for choice in ({"enable": ["bf16_kv_cache"]}, {"kv_cache_dtype": "bf16"}):
        with pytest.raises(KernelUnavailableError, match="with bf16_kv_cache: logits of prefill"):
            LLM(str(random_model), **settings, **choice)
    forced = {**settings, "enable": ["bf16_kv_cache", "skip_self_check"]}
    with LLM(str(random_model), **forced) as llm:
        assert llm.capabilities.description["flags"] == "bf16_kv_cache, skip_self_check"


def test_flags_are_described_with_state_and_how_they_are_validated():
    config = EngineConfig(kv_cache_dtype="bf16", enable=("skip_self_check",))
    assert sorted(config.active_flags) == ["bf16_kv_cache", "skip_self_check"]
    assert FLAGS["skip_self_check"].changes == "safeguards"
    assert "isn't validated" in FLAGS["skip_self_check"].status
    assert FLAGS["int8_lm_head"].status == "compared with the default by tests"
    assert ("skip_self_check",) not in variants()


def test_unknown_flag_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="int8_lm_head"):
        EngineConfig(enable=("int9",))

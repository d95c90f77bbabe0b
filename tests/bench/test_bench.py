"""Benchmarks: complete, consistent figures. Whether they are fast is no question here."""

import copy
import json
import math
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qwen3_a8w8.bench import engine as bench_engine
from qwen3_a8w8.bench import kernels as bench_kernels
from qwen3_a8w8.bench import report
from qwen3_a8w8.bench.machine import Machine, last_level_cache_bytes
from qwen3_a8w8.bench.provenance import git_commit, provenance
from qwen3_a8w8.checkpoint.checkpoint import open_checkpoint
from qwen3_a8w8.checkpoint.shapes import SHAPES
from qwen3_a8w8.checkpoint.synth import synth_checkpoint
from qwen3_a8w8.cli.main import app
from qwen3_a8w8.config import EngineConfig, ModelConfig
from qwen3_a8w8.errors import ConfigError, KernelUnavailableError
from qwen3_a8w8.kernels.cpu.backend import CpuBackend, runnable_isas
from qwen3_a8w8.runner.model_runner import ModelRunner
from qwen3_a8w8.runner.packed_cache import PackedCache

FREE_BYTES = 32 << 20

TINY = ModelConfig(
    hidden_size=128,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=64,
    intermediate_size=256,
    vocab_size=320,
    max_position_embeddings=512,
)
# By hand, from the shape: weights plus 4 bytes of scale per output channel.
TINY_LINEARS = {
    "qkv_proj": (256, 128),
    "o_proj": (128, 128),
    "gate_up_proj": (512, 128),
    "down_proj": (128, 256),
}
TINY_MACS = 2 * (256 * 128 + 128 * 128 + 512 * 128 + 128 * 256)
TINY_SCALES = 2 * (256 + 128 + 512 + 128)


@pytest.fixture(scope="module")
def backend():
    backend = CpuBackend(num_threads=2)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def machine(backend):
    return Machine(backend, FREE_BYTES)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "tiny"
    synth_checkpoint(TINY, path)
    return path


@pytest.fixture
def little_memory(monkeypatch):
    monkeypatch.setattr("qwen3_a8w8.runner.sizing.free_host_memory_bytes", lambda: FREE_BYTES)


@pytest.mark.parametrize("isa", runnable_isas())
def test_machine_limits_are_measured_on_every_path(isa):
    backend = CpuBackend(isa=isa, num_threads=2)
    machine = Machine(backend, 4 << 20)
    backend.close()
    assert 0.01 < machine.read_gbps < 10_000
    assert 0.0001 < machine.int8_tmacs < 1000
    assert machine.median_read_gbps <= machine.read_gbps
    assert machine.median_int8_tmacs <= machine.int8_tmacs


def test_floor_is_the_larger_of_reading_and_multiplying(machine):
    read, multiply = machine.read_gbps * 1e9, machine.int8_tmacs * 1e12
    assert math.isclose(machine.floor_s(3 * read, multiply), 3)
    assert math.isclose(machine.floor_s(read, 5 * multiply), 5)


def test_last_level_cache_is_known():
    assert last_level_cache_bytes() >= 1 << 18


def test_every_copy_of_a_weight_lies_in_memory_of_its_own(backend, machine, monkeypatch):
    bound = []
    original = CpuBackend.pack

    def pack(self, ref, tensor):
        packed = original(self, ref, tensor)
        bound.append((ref.name, packed))
        return packed

    monkeypatch.setattr(CpuBackend, "pack", pack)
    bench_kernels.bench_kernels(
        TINY,
        backend,
        machine,
        memory_bytes=1 << 20,
        row_counts=(1,),
        min_repeats=1,
        min_seconds=0,
    )
    weights = [packed for name, packed in bound if name.endswith("w_q")]
    assert len({packed.data_ptr() for packed in weights}) == len(weights)


def test_kernel_results_cover_every_linear_with_exact_counts(backend, machine):
    results = bench_kernels.bench_kernels(
        TINY, backend, machine, memory_bytes=1 << 20, min_repeats=2, min_seconds=0
    )
    assert [(r["op"], r["m"]) for r in results] == [
        *((op, m) for op in TINY_LINEARS for m in (1, 16, 512)),
        ("lm_head", 1),
        ("lm_head", 16),
    ]
    for result in results:
        if result["op"] == "lm_head":
            num_out, num_in = 320, 128
            assert result["bytes"] == 2 * num_out * num_in
        else:
            num_out, num_in = TINY_LINEARS[result["op"]]
            assert result["bytes"] == num_out * num_in + 4 * num_out
        assert result["macs"] == result["m"] * num_out * num_in
        assert result["copies"] == max(2, (1 << 20) // result["bytes"])
        assert 0 < result["best_s"] <= result["median_s"]
        assert result["repeats"] == 2
        assert math.isclose(result["roofline_ratio"], result["floor_s"] / result["best_s"])


def test_linears_that_are_measured_compute_what_they_say(backend):
    """A dispatch over copies of one weight adds the linear's result that many times."""
    import torch

    from qwen3_a8w8.kernels.backend import Compiler
    from qwen3_a8w8.kernels.reference import ReferenceBackend

    gen = torch.Generator().manual_seed(5)
    weight = torch.randint(-127, 128, (32, 64), generator=gen, dtype=torch.int8)
    constants = {
        **{f"copy{i}.w_q": weight for i in range(3)},
        **{f"copy{i}.w_scale": torch.full((32,), 0.01) for i in range(3)},
        "projection": torch.randn(16, 32, generator=gen).to(torch.bfloat16),
    }
    projected = []
    for one in (backend, ReferenceBackend()):
        compiled = Compiler(one).compile(
            bench_kernels.residual_linears, {"OUT": 32, "IN": 64, "COPIES": 3}
        )
        packed = {name: one.pack(ref, constants[name]) for name, ref in compiled.constants.items()}
        compiled.bind(packed)
        out = torch.empty(1, 16)
        compiled(
            x=torch.randn(4, 64, generator=torch.Generator().manual_seed(6)),
            residual=torch.zeros(4, 32),
            indices=torch.tensor([2], dtype=torch.int32),
            projected=out,
        )
        projected.append(out)
    assert torch.allclose(projected[0], projected[1], rtol=1e-4, atol=1e-4)
    assert float(projected[0].abs().max()) > 0


@pytest.mark.parametrize("batch_size", [1, 16])
def test_engine_result_has_exact_counts_and_consistent_times(tiny, machine, batch_size):
    workload = bench_engine.Workload(batch_size, prompt_tokens=20, new_tokens=6, context_tokens=40)
    config = workload.engine_config(EngineConfig(prefill_chunk_tokens=16))
    with open_checkpoint(tiny) as checkpoint:
        runner = ModelRunner(checkpoint, config, CpuBackend(num_threads=2))
    result = bench_engine.bench_engine(runner, config, TINY, machine, workload)
    kv_bytes_per_token = 2 * 1 * (64 + 4) * 2  # layers, heads, values and scale, K and V
    assert result["m"] == batch_size
    assert result["steps"] == 5
    assert result["weight_bytes"] == TINY_MACS + 4 * TINY_SCALES + 2 * 2 * 320 * 128
    assert result["bytes_per_step"] == (
        TINY_MACS + 4 * TINY_SCALES + 2 * 320 * 128 + batch_size * 43.5 * kv_bytes_per_token
    )
    assert result["kv_cache_bytes"] == (1 + (batch_size + 1) * 2) * 32 * kv_bytes_per_token
    assert 0 < result["best_tpot_s"] <= result["tpot_s"]
    assert result["device_step_s"] > 0
    assert 0 < result["prefill_s"] <= result["ttft_s"]
    assert math.isclose(result["prefill_tokens_per_s"], 20 / result["prefill_s"])
    assert math.isclose(result["roofline_ratio"], result["floor_s"] / result["best_tpot_s"])
    assert 0 < result["resident_bytes"] <= result["peak_resident_bytes"]
    assert "weights_read_gbps" not in result  # there is no packed file


def test_engine_result_of_packed_weights_has_floor_at_their_rate(tiny, machine, tmp_path, capsys):
    workload = bench_engine.Workload(1, prompt_tokens=4, new_tokens=4, context_tokens=4)
    config = workload.engine_config(EngineConfig())
    cache = PackedCache(tmp_path, is_required=True, min_bytes=0)
    with open_checkpoint(tiny) as checkpoint:
        runner = ModelRunner(checkpoint, config, CpuBackend(num_threads=2), cache)
    packed = runner.device.packed_memory
    assert packed.nbytes == next(tmp_path.glob("*.packed")).stat().st_size
    # One whose products cost nothing: the floors' ratio is that of the rates.
    machine = copy.copy(machine)
    machine.int8_tmacs = math.inf
    result = bench_engine.bench_engine(runner, config, TINY, machine, workload, packed)
    assert math.isclose(
        result["weights_roofline_ratio"] * result["weights_read_gbps"],
        result["roofline_ratio"] * machine.read_gbps,
    )
    report.print_engine("engine", machine.as_dict(), result)
    assert f"{result['weights_read_gbps']:.1f} GB/s" in capsys.readouterr().out


@pytest.mark.parametrize("field", ["prompt_tokens", "new_tokens", "context_tokens"])
def test_workload_out_of_range_is_refused(field):
    fields = {"batch_size": 1, "prompt_tokens": 4, "new_tokens": 4, "context_tokens": 4, field: 0}
    with pytest.raises(ConfigError, match=f"{field} is 0, expected at least"):
        bench_engine.Workload(**fields)


def test_provenance_says_where_a_figure_comes_from(backend):
    source = provenance(backend, model="qwen3-14b", fingerprint=None)
    assert source["backend"] == {"device": "cpu", "isa": backend.isa, "threads": 2}
    assert source["packages"]["torch"]
    assert source["model"] == "qwen3-14b"
    assert source["cpu"]


def test_commit_is_none_outside_a_checkout(tmp_path):
    assert git_commit(tmp_path) is None


def test_commit_names_the_checkout():
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        pytest.skip("not run from a checkout")
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", git_commit(root))


def test_kernels_command_prints_a_table_and_writes_json(monkeypatch, little_memory, tmp_path):
    monkeypatch.setitem(SHAPES, "tiny", TINY)
    path = tmp_path / "out.json"
    command = ["bench", "kernels", "-m", "tiny", "--min-seconds", "0", "--json", str(path)]
    result = CliRunner().invoke(app, [*command, "--memory-gib", "0.01"])
    assert result.exit_code == 0, result.output
    assert "gate_up_proj" in result.output
    content = json.loads(path.read_text())
    assert content["provenance"]["checkpoint_fingerprint"] is None
    assert content["machine"]["read_gbps"] > 0
    assert content["machine"]["int8_tmacs"] > 0
    assert len(content["results"]) == 14
    assert {"m", "roofline_ratio", "best_s"} <= content["results"][0].keys()


def test_engine_command_runs_a_checkpoint_without_tokenizer(tiny, little_memory, tmp_path):
    path = tmp_path / "out.json"
    command = ["bench", "engine", "-m", str(tiny), "--prompt-tokens", "8", "--new-tokens", "4"]
    result = CliRunner().invoke(app, [*command, "--batch", "16", "--json", str(path)])
    assert result.exit_code == 0, result.output
    content = json.loads(path.read_text())
    with open_checkpoint(tiny) as checkpoint:
        assert content["provenance"]["checkpoint_fingerprint"] == checkpoint.fingerprint
    (entry,) = content["results"]
    assert entry["m"] == 16
    assert "time per token" in result.output
    assert {"ttft_s", "tpot_s", "tokens_per_s", "host_gap_s", "roofline_ratio"} <= entry.keys()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["engine", "--batch", "4"], r"--batch is 4, expected one of \(1, 16\)"),
        (["engine", "--json", "/no/such/place/x.json"], "expected a file in a directory"),
        (["kernels", "--json", "/no/such/place/x.json"], "expected a file in a directory"),
    ],
)
def test_impossible_options_are_refused_before_anything_is_loaded(arguments, message):
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert isinstance(result.exception, ConfigError)
    assert re.search(message, str(result.exception))


@pytest.mark.parametrize("part", ["kernels", "engine"])
def test_device_that_is_not_there_is_refused(part):
    result = CliRunner().invoke(app, ["bench", part, "--device", "npu"])
    assert isinstance(result.exception, KernelUnavailableError)
    assert "npu" in str(result.exception)


def test_json_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="can't be written"):
        report.write_json(tmp_path, {}, {}, [])

"""The device's functions and the faults that can be emulated; each fault in its own process."""

import os
import subprocess
import sys

import pytest
import torch
import torch_npu
from torch_npu._emulation import options as options_module

from qwen3_a8w8.kernels.npu.limits import int8_products_per_s, read_bytes_per_s


def run(code, options="", **variables):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import torch, torch_npu\n{code}"],
        env=os.environ | {"NPU_EMULATION": options} | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout.strip(), done.stderr


def test_device_has_the_declared_memory_and_chip(emulated):
    emulated.memory_gib, emulated.soc = 32.0, 223
    free, total = torch.npu.mem_get_info()
    assert total == 32 << 30
    assert 0 < free <= total
    assert torch.npu.get_device_name() == "Ascend910B3"
    assert torch_npu.npu.utils.get_soc_version() == 223


def test_memory_in_use_is_not_free(emulated):
    emulated.memory_gib = 64.0
    before, _ = torch.npu.mem_get_info()
    held = torch.ones(64 << 20, dtype=torch.uint8)
    after, _ = torch.npu.mem_get_info()
    assert before - after > held.numel() // 2


def test_more_memory_than_the_device_has_is_refused(emulated):
    torch.npu.set_device(0)
    x = torch.ones(2, 32, dtype=torch.bfloat16)
    torch_npu.npu_dynamic_quant(x)
    held = torch.ones(64 << 20, dtype=torch.uint8)
    emulated.memory_gib = 1e-3
    with pytest.raises(torch.OutOfMemoryError, match="NPU out of memory"):
        torch_npu.npu_dynamic_quant(x)
    assert torch.npu.mem_get_info() == (0, int(1e-3 * 2**30))
    assert held.numel()


def test_unknown_option_is_refused():
    with pytest.raises(ValueError, match="no option 'antiquant'"):
        options_module.parse("antiquant=0")


def test_options_are_parsed():
    parsed = options_module.parse("vary=mm+npu_rms_norm, graph=0,memory_gib=1.5,lost_after=3")
    assert parsed.vary == {"mm", "npu_rms_norm"}
    assert (parsed.graph, parsed.memory_gib, parsed.lost_after) == (False, 1.5, 3)


ERROR = "\ntry: torch.npu.set_device({})\nexcept RuntimeError as error: print(error)"


def test_machine_without_device_op_or_current_versions():
    code, out, errors = run(
        "print(torch.npu.is_available())\n"
        "print(torch_npu.__version__, torch_npu.npu.utils.get_cann_version())\n"
        "print(*(hasattr(torch_npu, f'npu_{name}') for name in ('mrope', 'rms_norm')))\n"
        "print(hasattr(torch.ops.npu, 'npu_mrope'))" + ERROR.format(0),
        "devices=0,missing=npu_mrope,report=2.1.0,cann=8.0.RC1",
    )
    assert code == 0, errors
    assert out.splitlines()[:4] == ["False", "2.1.0 8.0.RC1", "False True", "False"]
    assert "107001" in out


def test_visible_devices_are_counted_and_others_refused():
    code, out, errors = run(
        "print(torch.npu.device_count())" + ERROR.format(2),
        "devices=8",
        ASCEND_RT_VISIBLE_DEVICES="3,5",
    )
    assert code == 0, errors
    assert out.startswith("2\n")
    assert "There are 2 devices" in out


def test_second_process_on_an_exclusive_device_is_refused(tmp_path):
    options = f"exclusive={tmp_path}"
    inner = (
        "import subprocess, sys\n"
        "torch.npu.set_device(0)\n"
        "done = subprocess.run([sys.executable, '-c', "
        "'import torch, torch_npu; torch.npu.set_device(0)'], capture_output=True, text=True)\n"
        "print(done.returncode, 'occupied by another process' in done.stderr)"
    )
    assert run(inner, options)[:2] == (0, "1 True")


def test_lost_device_fails_in_every_later_call():
    code, out, _ = run(
        "x = torch.ones(2, 32).bfloat16()\n"
        "torch_npu.npu_dynamic_quant(x); torch_npu.npu_dynamic_quant(x)\n"
        "torch.npu.synchronize()\n"
        "for call in (lambda: torch_npu.npu_dynamic_quant(x), torch.npu.synchronize):\n"
        "    try: call()\n"
        "    except RuntimeError as error: print('507035' in str(error))",
        "lost_after=2",
    )
    assert (code, out.split()) == (0, ["True", "True"])


def test_meta_device_notices_a_host_tensor():
    code, out, errors = run(
        "device = torch_npu.EMULATED_TORCH_DEVICE\n"
        "x = torch.ones(2, 64, dtype=torch.bfloat16, device=device)\n"
        "print(torch_npu.npu_swiglu(x).device)\n"
        "try: x + torch.ones(64)\n"
        "except RuntimeError as error: print('device' in str(error))\n",
        "device=meta",
    )
    assert (code, out.split()) == (0, ["meta", "True"]), errors


def test_schemas_that_were_never_fetched_are_named(tmp_path):
    code, _, errors = run("", NPU_SCHEMAS_DIR=str(tmp_path))
    assert code == 1
    assert "npu_schemas.py" in errors


def test_limits_are_rates_of_every_pass():
    for rates in (
        read_bytes_per_s(torch_npu, "cpu", 1 << 16, 3),
        int8_products_per_s(torch_npu, "cpu", 3),
    ):
        assert 1 <= len(rates) <= 3
        assert min(rates) > 0

"""Rules for every op on a device, shown on device "meta"."""

import pytest
import torch
import torch_npu
from torch_npu._emulation.device_rules import DeviceRules
from torch_npu._emulation.refusals import ContractError

X = torch.empty(4, 64, dtype=torch.bfloat16, device="meta")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: X.double(), "float64"),
        (lambda: torch.arange(3.0, dtype=torch.float64, device="meta"), "float64"),
        (lambda: torch_npu.npu_rms_norm(X, torch.ones(64, dtype=torch.bfloat16)), "together"),
        (lambda: torch.nn.functional.embedding(torch.zeros(3, dtype=torch.int64), X), "together"),
    ],
)
def test_device_refuses(call, words):
    with DeviceRules(), pytest.raises((ContractError, RuntimeError), match=words):
        call()


def test_device_takes_host_numbers_and_copies():
    with DeviceRules():
        y = X * torch.tensor(2.0)
        X.copy_(torch.zeros(4, 64))
        z = torch.zeros(4, 64).to("meta")
        host = torch.ones(3).double()
    assert (y.device.type, z.device.type, host.dtype) == ("meta", "meta", torch.float64)

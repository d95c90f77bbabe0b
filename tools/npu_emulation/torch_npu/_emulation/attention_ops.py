"""The ops of fused attention, in two versions and with given outputs; `attention.py` computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_npu._emulation.attention import Arguments, attend
from torch_npu._emulation.definitions import kernel, meta
from torch_npu._emulation.refusals import OpContract

_UNUSED_V1 = (
    "pse_shift",
    "dequant_scale1",
    "quant_scale1",
    "dequant_scale2",
    "quant_scale2",
    "quant_offset2",
    "antiquant_scale",
    "antiquant_offset",
    "query_padding_size",
    "kv_padding_size",
    "key_shared_prefix",
    "value_shared_prefix",
    "actual_shared_prefix_len",
    "query_rope",
    "key_rope",
    "key_rope_antiquant_scale",
)


def _refuse_unused(op: str, unused: tuple[str, ...], given: dict[str, Any]) -> None:
    for name in unused:
        OpContract(op).require(given.pop(name, None) is None, f"{name} isn't emulated")


def _first(op: str, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    _refuse_unused(op, _UNUSED_V1, given)
    given.pop("pre_tokens", None)
    given.pop("next_tokens", None)
    OpContract(op).require(given.pop("antiquant_mode", 0) == 0, "antiquant_mode isn't emulated")
    defaults: dict[str, Any] = {
        "atten_mask": None,
        "actual_seq_lengths": None,
        "actual_seq_lengths_kv": None,
        "block_table": None,
        "key_antiquant_scale": None,
        "key_antiquant_offset": None,
        "value_antiquant_scale": None,
        "value_antiquant_offset": None,
        "num_heads": 1,
        "num_key_value_heads": 0,
        "scale": 1.0,
        "input_layout": "BSH",
        "sparse_mode": 0,
        "inner_precise": 0,
        "block_size": 0,
        "key_antiquant_mode": 0,
        "value_antiquant_mode": 0,
        "softmax_lse_flag": False,
    }
    return attend(op, Arguments(*args, **(defaults | given)))


def _write_out(op: str, result: tuple[Tensor, Tensor], outputs: list[Tensor]) -> Any:
    check = OpContract(op)
    check.require(len(outputs) == 2, f"out has {len(outputs)} tensors, not 2")
    out, lse = outputs
    check.shape("attention_out", out, tuple(result[0].shape))
    check.dtype("attention_out", out, (result[0].dtype,))
    check.contiguous(attention_out=out)
    out.copy_(result[0])
    if tuple(lse.shape) == tuple(result[1].shape):
        lse.copy_(result[1])
    # Fresh handles on the same memory: an op may not return its inputs.
    return out.view(out.shape), lse.view(lse.shape)


FIA = "npu_fused_infer_attention_score"


@kernel(FIA)
def _fia(*args: Any, **given: Any) -> Any:
    return _first(FIA, args, given)


@kernel(f"{FIA}.out")
def _fia_out(*args: Any, **given: Any) -> Any:
    outputs = given.pop("out")
    given.pop("workspace", None)
    return _write_out(FIA, _first(FIA, args, given), outputs)


# The second version is the first with other names.
_RENAMED_V2 = {
    "actual_seq_qlen": "actual_seq_lengths",
    "actual_seq_kvlen": "actual_seq_lengths_kv",
    "dequant_scale_key": "key_antiquant_scale",
    "dequant_offset_key": "key_antiquant_offset",
    "dequant_scale_value": "value_antiquant_scale",
    "dequant_offset_value": "value_antiquant_offset",
    "num_query_heads": "num_heads",
    "softmax_scale": "scale",
    "key_quant_mode": "key_antiquant_mode",
    "value_quant_mode": "value_antiquant_mode",
    "return_softmax_lse": "softmax_lse_flag",
}
_UNUSED_V2 = (
    "query_rope",
    "key_rope",
    "pse_shift",
    "dequant_scale_query",
    "dequant_scale_key_rope",
    "quant_scale_out",
    "quant_offset_out",
    "quant_scale_p",
    "learnable_sink",
    *(
        f"{name}_dtype"
        for name in (
            "query",
            "key",
            "value",
            "query_rope",
            "key_rope",
            "key_shared_prefix",
            "value_shared_prefix",
            "dequant_scale_query",
            "dequant_scale_key",
            "dequant_scale_value",
            "dequant_scale_key_rope",
        )
    ),
    "out_dtype",
)


def _second(args: tuple[Any, ...], given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    op = f"{FIA}_v2"
    _refuse_unused(op, _UNUSED_V2, given)
    OpContract(op).require(given.pop("query_quant_mode", 0) == 0, "query_quant_mode isn't emulated")
    return _first(op, args, {_RENAMED_V2.get(name, name): value for name, value in given.items()})


@kernel(f"{FIA}_v2")
def _fia_v2(*args: Any, **given: Any) -> Any:
    return _second(args, given)


@kernel(f"{FIA}_v2.out")
def _fia_v2_out(*args: Any, **given: Any) -> Any:
    outputs = given.pop("out")
    given.pop("workspace", None)
    return _write_out(f"{FIA}_v2", _second(args, given), outputs)


def _max_workspace(query: Tensor, *args: Any, **given: Any) -> Tensor:
    return query.new_empty(1 << 10, dtype=torch.uint8)


for _name in (f"_{FIA}_get_max_workspace", f"_{FIA}_v2_get_max_workspace"):
    kernel(_name)(_max_workspace)
    meta(_name)(_max_workspace)


@meta(f"{FIA}.out")
def _fia_out_meta(*args: Any, **given: Any) -> Any:
    outputs = given.pop("out")
    given.pop("workspace", None)
    wanted = getattr(torch.ops.npu, FIA).default(*args, **given)[0]
    check = OpContract(FIA)
    check.shape("out[0]", outputs[0], tuple(wanted.shape))
    check.dtype("out[0]", outputs[0], (wanted.dtype,))
    return tuple(each.view(each.shape) for each in outputs)

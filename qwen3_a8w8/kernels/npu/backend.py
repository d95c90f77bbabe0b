"""The NPU backend: programs as calls of torch_npu's ops, decode as captured graphs.

`lowering.py` says what each node does, `kernels.py` and `attention.py` call the ops, `forms.py` and
`invariance.py` choose in which form. This module packs constants, checks what ops don't check, and
runs programs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from qwen3_a8w8.errors import KernelUnavailableError, SignatureError
from qwen3_a8w8.kernels.backend import HostArrays
from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from qwen3_a8w8.kernels.npu import limits
from qwen3_a8w8.kernels.npu.attention import AttentionKernels
from qwen3_a8w8.kernels.npu.capabilities import probe
from qwen3_a8w8.kernels.npu.device import NpuDevice, device_errors
from qwen3_a8w8.kernels.npu.forms import Forms
from qwen3_a8w8.kernels.npu.graphs import DecodeGraphs, Outputs
from qwen3_a8w8.kernels.npu.invariance import settle
from qwen3_a8w8.kernels.npu.kernels import MAX_LAST_DIM, NpuKernels
from qwen3_a8w8.kernels.npu.lowering import STEPS, Values, host_names, run_nodes
from qwen3_a8w8.kernels.npu.sampling import NpuSampler, SampleCounts
from qwen3_a8w8.kernels.program import ConstLayout, Node, Program, Ref
from qwen3_a8w8.kernels.signature import FLOAT32, Dim

logger = logging.getLogger(__name__)

BLOCK_MULTIPLE = 32
MAX_BLOCK_SIZE = 512


class NpuBackend:
    """Kernels for one Ascend NPU (Atlas A2, A3).

    Attributes:
        npu: the device.
        capabilities: what it has.
        forms: in which form kernels run.
        kernels: the kernels.
        sample_counts: how rows were sampled.

    Args:
        num_threads: host threads of the sampler; None: the cores this process may use.

    Raises:
        KernelUnavailableError: there is no such device, or it lacks something; one line says what.
    """

    has_bf16_activations = True
    workspace_tokens = 4096

    def __init__(self, num_threads: int | None = None) -> None:
        self.npu = NpuDevice()
        self.capabilities = probe(self.npu)
        self.device: str = self.npu.torch_device
        self.name = f"npu-{self.capabilities.soc.lower()}"
        self.forms = Forms()
        self.kernels = NpuKernels(
            self.npu, self.forms, reads_int8_cache=self.capabilities.reads_int8_cache
        )
        self.sample_counts = SampleCounts()
        self._cpu = CpuBackend(num_threads=num_threads)
        self._executables: list[NpuExecutable] = []
        self._last_packed: tuple[Tensor, Any] | None = None
        self._is_probed = False

    @property
    def is_batch_invariant(self) -> bool:
        """Whether rows had the same bits alone and in batches, in the forms that are in use."""
        return not self.forms.varying

    def lower(self, program: Program) -> Any:
        """Checks a program against the ops' limits; allocates nothing."""
        if [node.op for node in program.nodes] == ["sample"]:
            return NpuSampler(program, self._cpu, self.sample_counts)
        _check_limits(program)
        if any(node.op == "copy" for node in program.nodes):
            # Groups of layers end between a sum and its norm, which the fused op doesn't round.
            self.forms.take_slowest("add_rms_norm_quant", "layers run in groups")
        executable = NpuExecutable(program, self)
        self._executables.append(executable)
        return executable

    def pack(self, ref: Ref, tensor: Any) -> Any:
        """Moves a constant to the device, weights of int8 linears transposed in FRACTAL_NZ."""
        with device_errors(f"taking {ref.name}"):
            return self._pack(ref, tensor)

    def _pack(self, ref: Ref, tensor: Tensor) -> Any:
        if ref.layout is ConstLayout.LINEAR_INT8:
            return self.kernels.pack_int8(tensor)
        if ref.dtype is FLOAT32 and len(ref.shape) == 1:
            return self.kernels.pack_norm(tensor)
        # A tied lm_head is the embedding, packed just before it.
        if self._last_packed is None or self._last_packed[0] is not tensor:
            self._last_packed = (tensor, tensor.to(self.device))
        return self._last_packed[1]

    def settle_forms(self, program: Program, constants: Mapping[str, Any]) -> None:
        """Chooses the kernels' forms for a program whose weights are on the device."""
        self._last_packed = None
        self._is_probed = True
        before = self.forms.describe()
        with device_errors("its kernels were probed"):
            settle(program, constants, self.kernels, self.device)
        if self.forms.describe() != before:
            logger.warning(
                "NPU kernels that don't run in their fastest form: %s", self.forms.describe()
            )

    def free_memory_bytes(self) -> int:
        """Bytes of device memory that can be allocated now."""
        with device_errors("its free memory was asked for"):
            self.npu.synchronize()
            self.npu.empty_cache()
            return self.npu.memory_bytes()[0]

    def describe(self) -> dict[str, str | int | float]:
        """Device, versions, forms of kernels, and what they promise."""
        reasons = {each.graphs.no_graphs for each in self._executables if each.graphs.no_graphs}
        varying = ", ".join(sorted(self.forms.varying))
        probed = "probed" if self._is_probed else "not probed yet"
        return {
            "device": "npu",
            **self.capabilities.describe(),
            "forms": self.forms.describe(),
            "batch_invariance": f"not promised: {varying}" if varying else probed,
            "graphs": f"none: {min(reasons)}" if reasons else "decode",
        }

    def read_bytes_per_s(self, num_bytes: int, prefetch_bytes: int, passes: int) -> list[float]:
        """See `limits.read_bytes_per_s`; nothing is prefetched here."""
        del prefetch_bytes
        return limits.read_bytes_per_s(self.npu.torch_npu, self.device, num_bytes, passes)

    def int8_products_per_s(self, rounds: int, passes: int) -> list[float]:
        """See `limits.int8_products_per_s`, which finds its own sizes."""
        del rounds
        return limits.int8_products_per_s(self.npu.torch_npu, self.device, passes)

    def close(self) -> None:
        """Drops graphs and the host's threads; may be called again."""
        for executable in self._executables:
            executable.close()
        self._executables.clear()
        self._cpu.close()


class NpuExecutable:
    """A program on the device.

    Attributes:
        graphs: captured dispatches.
    """

    arena_bytes = 0
    """Scratch memory is that of torch's allocator, which `free_memory_bytes` sees."""

    def __init__(self, program: Program, backend: NpuBackend) -> None:
        self._program = program
        self._backend = backend
        self._constants: dict[str, Any] = {}
        self._slots = next(
            (n.inputs[5].name for n in program.nodes if n.op.startswith("qk_norm_rope_cache")), None
        )
        counter = () if program.active_count is None else program.active_count[:1]
        slots = () if self._slots is None else (self._slots,)
        self._host_names = sorted({*host_names(program), *counter, *slots})
        self._attention = next((n for n in program.nodes if n.op.startswith("attention")), None)
        self.graphs = DecodeGraphs(backend.npu)

    def bind(self, constants: Mapping[str, Any]) -> None:
        """Takes all constants, and chooses forms for the kernels that use them."""
        self._constants = dict(constants)
        if constants and self._attention is not None:
            self._backend.settle_forms(self._program, self._constants)

    def run(self, args: Mapping[str, Any], dims: Mapping[str, int]) -> None:
        """One dispatch; blocks until the outputs are written.

        Raises:
            SignatureError: a length, a slot or a block that the ops wouldn't check is out of range.
        """
        self.run_with(args, dims, {})

    def run_with(self, args: Mapping[str, Any], dims: Mapping[str, int], host: HostArrays) -> None:
        """See `HostReader`; raises as `run` does."""
        with device_errors(f"running {self._program.signature.name}"):
            known = {
                name: (host[name] if name in host else args[name]).tolist()
                for name in self._host_names
            }
            self._run(args, dims, known)

    def _run(
        self, args: Mapping[str, Any], dims: Mapping[str, int], host: Mapping[str, list[int]]
    ) -> None:
        num_live = None
        if self._program.active_count is not None:
            num_live = host[self._program.active_count[0]][0]
            if num_live == 0:
                return
        self._check(args, host, num_live)
        outputs = self._replayed(args, dims, host) if num_live is not None else None
        if outputs is None:
            run_nodes(self._program, self._values(args, dims, host, num_live))
        else:
            for name, value in outputs.items():
                args[name][:num_live].copy_(value[:num_live])
        self._backend.npu.synchronize()

    def close(self) -> None:
        """Drops graphs; may be called again."""
        self.graphs.close()

    def _replayed(
        self, args: Mapping[str, Tensor], dims: Mapping[str, int], host: Mapping[str, list[int]]
    ) -> Outputs | None:
        attention = self._backend.kernels.attention
        if self._attention is None or self._slots is None:
            return None
        node = self._attention
        if not self.graphs.no_graphs and not _can_capture(attention, node):
            self.graphs.no_graphs = "blocks of an int8 cache are gathered, whose number varies"
            logger.warning("decode runs eagerly, without graphs: %s", self.graphs.no_graphs)
        # Idle rows run, too: at one position of the scratch block.
        lengths = [max(length, 1) for length in host[node.inputs[6].name]]

        def record() -> Outputs:
            given = {**host, node.inputs[6].name: lengths}
            values = self._values(args, dims, given, None, keeps_outputs=True)
            run_nodes(self._program, values)
            return values.outputs

        return self.graphs.run(args, dims, attention.call_lengths(lengths), record)

    def _values(
        self,
        args: Mapping[str, Tensor],
        dims: Mapping[str, int],
        host: Mapping[str, list[int]],
        num_live: int | None,
        *,
        keeps_outputs: bool = False,
    ) -> Values:
        return Values(
            self._program,
            self._backend.kernels,
            args,
            dims,
            self._constants,
            host,
            num_live,
            keeps_outputs=keeps_outputs,
        )

    def _check(
        self, args: Mapping[str, Tensor], host: Mapping[str, list[int]], num_live: int | None
    ) -> None:
        """What the ops read or write without looking."""
        name = self._program.signature.name
        if self._attention is not None:
            lengths = host[self._attention.inputs[6].name]
            block_size = int(str(self._attention.inputs[1].shape[3]))
            limit = args[self._attention.inputs[5].name].shape[1] * block_size
            for row, length in enumerate(lengths[:num_live]):
                if not 1 <= length <= limit:
                    raise SignatureError(
                        f"{name}: row {row} attends to {length} positions, expected 1 to {limit} "
                        "(its block table's)"
                    )
        if self._slots is not None:
            slots = host[self._slots]
            cache = next(n for n in self._program.nodes if n.updates).updates[0]
            _, num_blocks, _, size, _ = args[cache.name].shape
            limit = num_blocks * size
            for row, slot in enumerate(slots):
                if not 0 <= slot < limit:
                    raise SignatureError(
                        f"{name}: row {row} writes slot {slot}, expected 0 to {limit - 1}"
                    )
            if len(set(slots)) < len(slots):
                twice = next(slot for slot in slots if slots.count(slot) > 1)
                raise SignatureError(
                    f"{name}: slot {twice} is written by {slots.count(twice)} rows, expected one; "
                    "the device would write them in any order"
                )


def _can_capture(attention: AttentionKernels, node: Node) -> bool:
    return attention.reads_paged(is_int8=node.op == "attention")


def _check_limits(program: Program) -> None:
    name = program.signature.name
    for node in program.nodes:
        if node.op not in STEPS:
            raise KernelUnavailableError(f"{name}: op {node.op!r} has no NPU kernel")
        if node.op in ("linear", "linear_add"):
            in_features = node.inputs[2].shape[1]
            if isinstance(in_features, int) and in_features > MAX_LAST_DIM:
                raise SignatureError(
                    f"{name}: {node.inputs[2].name!r} has {in_features} inputs, npu_quant_matmul "
                    f"takes at most {MAX_LAST_DIM}"
                )
        if node.op.startswith("attention"):
            size = node.inputs[1].shape[3]
            if not isinstance(size, Dim) and (size % BLOCK_MULTIPLE or size > MAX_BLOCK_SIZE):
                raise KernelUnavailableError(
                    f"device 'npu': block_size is {size}; attention reads blocks of a multiple of "
                    f"{BLOCK_MULTIPLE} tokens up to {MAX_BLOCK_SIZE}: set block_size to 128"
                )

"""Which device is emulated: the options of the environment variable NPU_EMULATION.

Options are separated by commas, several ops in one option by "+":

    devices=1            number of devices
    memory_gib=64        memory of each
    soc=220              what get_soc_version() gives: 220 to 225 is Atlas A2, 250 to 255 A3
    cann=8.5.0           version of CANN; empty: none is found
    version=2.14.0       version of torch_npu; its ops are defined from that wheel's schemas
    report=2.1.0         version that is reported instead, with the same ops
    missing=OP+OP        ops that don't exist
    vary=OP+OP           ops whose rows have other bits in a batch than alone
                         (a name of torch_npu's, or mm for the float matrix product)
    antiquant5=0         attention refuses antiquant mode 5
    graph=0              graphs can't be captured
    lost_after=N         after N calls of ops every call says that the device is lost
    lost_when=FILE       the device is lost to the first process that calls an op while FILE exists;
                         it renames FILE to FILE.PID, so that no other process loses its own
    device=cpu           where tensors live; with "meta" nothing is computed but shapes, and a
                         host tensor among a device's is an error, as on hardware
    exclusive=DIRECTORY  a device serves one process; who holds it is kept in that directory
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields

VARIABLE = "NPU_EMULATION"


@dataclass
class Options:
    """One emulated machine; see the module's docstring."""

    devices: int = 1
    memory_gib: float = 64.0
    soc: int = 220
    cann: str = "8.5.0"
    version: str = "2.14.0"
    report: str = ""
    missing: frozenset[str] = field(default_factory=frozenset)
    vary: frozenset[str] = field(default_factory=frozenset)
    antiquant5: bool = True
    graph: bool = True
    lost_after: int = -1
    lost_when: str = ""
    device: str = "cpu"
    exclusive: str = ""

    @property
    def reported_version(self) -> str:
        """What `torch_npu.__version__` says."""
        return self.report or self.version


def parse(text: str) -> Options:
    """Reads the variable's value.

    Raises:
        ValueError: an option that doesn't exist.
    """
    options = Options()
    defaults = {item.name: getattr(options, item.name) for item in fields(Options)}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        if name not in defaults:
            raise ValueError(f"{VARIABLE}: no option {name!r}; there are {sorted(defaults)}")
        default = defaults[name]
        if isinstance(default, bool):
            setattr(options, name, value not in ("0", "false", "no"))
        elif isinstance(default, frozenset):
            setattr(options, name, frozenset(filter(None, value.split("+"))))
        else:
            setattr(options, name, type(default)(value))
    return options


options = parse(os.environ.get(VARIABLE, ""))
"""The options of this process. Tests may change all but `version`, `missing` and `device`."""

"""Names that the wheel's metas import."""

from torch_npu.npu.utils import get_soc_version

__all__ = ["get_soc_version"]

"""What stands behind the emulated torch_npu; see the docstring of `torch_npu`."""

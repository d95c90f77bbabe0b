"""The suite of `Ops.sample`, with the NPU backend in the place of the CPU's."""

from tests.kernels import test_sample

# All of its tests but those that change the number of CPU threads.
globals().update(
    {
        name: test
        for name, test in vars(test_sample).items()
        if name.startswith("test_") and "by_threads" not in test.__code__.co_varnames
    }
)

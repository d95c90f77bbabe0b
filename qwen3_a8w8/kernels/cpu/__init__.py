"""CPU kernels: `backend.py` lowers programs onto the native module built from `csrc/`.

`native.py` loads that module and decides how long its objects live. `csrc/isa/` holds the kernels,
compiled once per instruction path; `csrc/program.cpp` replays a program on them;
`csrc/thread_pool.cpp` owns the threads. See docs/backends.md.
"""

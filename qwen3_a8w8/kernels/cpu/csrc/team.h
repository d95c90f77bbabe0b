// What kernels see of the thread pool. Plain declarations only: instruction-set units include
// this file, and nothing inline from the standard library may be emitted there (the linker
// would be free to keep the copy that uses instructions the machine lacks).
#pragma once

#include <cstddef>
#include <cstdint>

namespace qw {

class Team {
 public:
  using Task = void (*)(void* context, int64_t index, int thread);

  // Runs task(context, i, thread) for every i in [0, count); returns when all are done.
  virtual void parallel(int64_t count, Task task, void* context) = 0;

  // Threads that take part, the caller included.
  virtual int size() const = 0;

  // 64-byte aligned memory of one thread, at least `bytes`; valid until the thread asks again.
  virtual char* scratch(int thread, size_t bytes) = 0;

  // The same for all threads together; only the caller of `parallel` may ask.
  virtual char* shared(size_t bytes) = 0;

 protected:
  ~Team() = default;
};

}  // namespace qw

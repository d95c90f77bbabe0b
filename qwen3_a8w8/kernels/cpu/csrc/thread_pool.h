// A thread pool with work stealing. Each thread takes the chunks of its own range from the front,
// so that it reads memory in order, and then those of the other ranges from the back. A thread that
// loses its core to another process thus delays the rest by one chunk at most.
#pragma once

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "aligned_buffer.h"
#include "team.h"

namespace qw {

// Cores this process may use: the affinity mask, limited by the cgroup's CPU quota.
int usable_cores();

class ThreadPool final : public Team {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  void parallel(int64_t count, Task task, void* context) override;
  int size() const override { return num_threads_; }
  char* scratch(int thread, size_t bytes) override;
  char* shared(size_t bytes) override;

  // Starts the threads again in a child process, which inherits none.
  void adopt_process();

  // Joins the threads and frees scratch memory; the pool then runs everything on the caller.
  void close();

  // Whether this is a child process that inherited the pool in a fork and hasn't used it yet.
  bool is_inherited() const;

 private:
  struct Worker {
    ThreadPool* pool;
    int index;
    pthread_t thread;
  };
  // What sleeping threads wait on. Replaced as a whole after a fork: a mutex that was held at that
  // moment stays locked in the child for ever.
  struct Sleep {
    std::mutex mutex;
    std::condition_variable work, finished;
  };

  void start();
  static void* entry(void* worker);
  void work_loop(int thread);
  void take_chunks(int thread);
  bool has_chunks() const;

  int num_threads_;
  int pid_ = 0;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<AlignedBuffer> scratch_;
  AlignedBuffer shared_;

  // A thread's own range of the current job's chunks: the next chunk in the low word, the end of
  // the range in the high word.
  struct alignas(64) Range {
    std::atomic<uint64_t> chunks{0};
  };
  bool take_chunk(int thread, int64_t& chunk);

  std::unique_ptr<Range[]> ranges_;
  alignas(64) std::atomic<int64_t> done_{0};
  alignas(64) Task task_ = nullptr;
  void* context_ = nullptr;
  int64_t count_ = 0;
  std::atomic<int> sleepers_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<bool> stop_{false};
  Sleep* sleep_ = nullptr;
};

}  // namespace qw

#include "thread_pool.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>

namespace qw {
namespace {

// Some 30 to 100 microseconds: longer than the serial ops between two parallel ones, short enough
// that an idle process doesn't show as busy.
constexpr int kSpins = 2000;

// A range of chunks in one word, so that both ends are claimed in one step.
inline uint64_t range_of(uint64_t begin, uint64_t end) { return end << 32 | begin; }
inline uint64_t first_of(uint64_t range) { return range & 0xffffffffu; }
inline uint64_t end_of(uint64_t range) { return range >> 32; }
inline bool is_empty(uint64_t range) { return first_of(range) >= end_of(range); }

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int affinity_cores() {
#if defined(__linux__)
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) return CPU_COUNT(&mask);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

// Cores that the cgroup's CPU quota allows, or 0 where there is no quota.
int quota_cores() {
  std::ifstream v2("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (v2 >> quota >> period && quota != "max" && period > 0) {
    return static_cast<int>(std::ceil(std::stod(quota) / period));
  }
  std::ifstream v1_quota("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream v1_period("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  double v1 = 0;
  if (v1_quota >> v1 && v1_period >> period && v1 > 0 && period > 0) {
    return static_cast<int>(std::ceil(v1 / period));
  }
  return 0;
}

}  // namespace

int usable_cores() {
  int cores = std::max(1, affinity_cores());
  const int quota = quota_cores();
  return quota > 0 ? std::max(1, std::min(cores, quota)) : cores;
}

ThreadPool::ThreadPool(int num_threads) : num_threads_(std::max(1, num_threads)) {
  scratch_.resize(num_threads_);
  start();
}

ThreadPool::~ThreadPool() {
  close();
  // In a forked child, threads of the parent count as waiting: destroying would wait for them.
  if (!is_inherited()) delete sleep_;
}

void ThreadPool::start() {
  pid_ = getpid();
  sleep_ = new Sleep;
  sleepers_ = 0;
  caller_sleeps_ = false;
  ranges_ = std::make_unique<Range[]>(num_threads_);
  for (int i = 1; i < num_threads_; ++i) {
    workers_.push_back(std::make_unique<Worker>(Worker{this, i, {}}));
    Worker* worker = workers_.back().get();
    const int error = pthread_create(&worker->thread, nullptr, entry, worker);
    if (error != 0) {
      workers_.pop_back();
      close();
      throw std::system_error(error, std::generic_category(), "starting a kernel thread");
    }
  }
}

bool ThreadPool::is_inherited() const { return pid_ != getpid(); }

void ThreadPool::adopt_process() {
  if (!is_inherited()) return;
  for (auto& worker : workers_) worker.release();  // their threads exist in the parent only
  workers_.clear();
  if (stop_) {
    pid_ = getpid();
    return;
  }
  start();
}

void ThreadPool::close() {
  if (is_inherited()) {
    for (auto& worker : workers_) worker.release();
    workers_.clear();
  } else if (!workers_.empty()) {
    {
      std::lock_guard<std::mutex> lock(sleep_->mutex);
      stop_ = true;
      sleep_->work.notify_all();
    }
    for (auto& worker : workers_) pthread_join(worker->thread, nullptr);
    workers_.clear();
  }
  stop_ = true;
  for (auto& buffer : scratch_) buffer.release();
  shared_.release();
}

char* ThreadPool::scratch(int thread, size_t bytes) {
  scratch_[thread].reserve(bytes);
  return scratch_[thread].data();
}

char* ThreadPool::shared(size_t bytes) {
  shared_.reserve(bytes);
  return shared_.data();
}

void* ThreadPool::entry(void* argument) {
  auto* worker = static_cast<Worker*>(argument);
  worker->pool->work_loop(worker->index);
  return nullptr;
}

bool ThreadPool::has_chunks() const {
  for (int i = 0; i < num_threads_; ++i) {
    if (!is_empty(ranges_[i].chunks.load())) return true;
  }
  return false;
}

bool ThreadPool::take_chunk(int thread, int64_t& chunk) {
  for (int i = 0; i < num_threads_; ++i) {
    std::atomic<uint64_t>& chunks = ranges_[(thread + i) % num_threads_].chunks;
    uint64_t range = chunks.load(std::memory_order_acquire);
    while (!is_empty(range)) {
      const uint64_t begin = first_of(range), end = end_of(range);
      const uint64_t rest = i == 0 ? range_of(begin + 1, end) : range_of(begin, end - 1);
      // A thread that comes late can't take a chunk of a job whose task it hasn't read: the
      // job's fields are stable from before its ranges are stored until all of its chunks, the
      // one claimed here included, are done.
      if (!chunks.compare_exchange_weak(range, rest, std::memory_order_acq_rel)) continue;
      chunk = static_cast<int64_t>(i == 0 ? begin : end - 1);
      return true;
    }
  }
  return false;
}

void ThreadPool::take_chunks(int thread) {
  int64_t taken = 0;
  for (int64_t chunk = 0; take_chunk(thread, chunk); ++taken) task_(context_, chunk, thread);
  if (taken == 0) return;
  const int64_t count = count_;
  if (done_.fetch_add(taken) + taken == count && thread != 0 && caller_sleeps_.load()) {
    std::lock_guard<std::mutex> lock(sleep_->mutex);
    sleep_->finished.notify_one();
  }
}

void ThreadPool::work_loop(int thread) {
  for (;;) {
    int spins = 0;
    while (!has_chunks() && !stop_.load(std::memory_order_relaxed) && spins < kSpins) {
      pause();
      ++spins;
    }
    if (!has_chunks()) {
      std::unique_lock<std::mutex> lock(sleep_->mutex);
      sleepers_.fetch_add(1);
      sleep_->work.wait(lock, [this] { return stop_.load() || has_chunks(); });
      sleepers_.fetch_sub(1);
      if (stop_.load()) return;
    }
    take_chunks(thread);
  }
}

void ThreadPool::parallel(int64_t count, Task task, void* context) {
  if (count <= 1 || workers_.empty()) {
    for (int64_t i = 0; i < count; ++i) task(context, i, 0);
    return;
  }
  task_ = task;
  context_ = context;
  count_ = count;
  done_.store(0, std::memory_order_relaxed);
  for (int i = 0; i < num_threads_; ++i) {
    ranges_[i].chunks.store(range_of(count * i / num_threads_, count * (i + 1) / num_threads_));
  }
  if (sleepers_.load() > 0) {
    std::lock_guard<std::mutex> lock(sleep_->mutex);
    sleep_->work.notify_all();
  }
  take_chunks(0);
  for (int spins = 0; done_.load(std::memory_order_acquire) != count; ++spins) {
    if (spins < kSpins) {
      pause();
      continue;
    }
    std::unique_lock<std::mutex> lock(sleep_->mutex);
    caller_sleeps_ = true;
    sleep_->finished.wait(lock, [&] { return done_.load() == count; });
    caller_sleeps_ = false;
  }
}

}  // namespace qw

// Counts the objects that Python can hold, so that tests see whether closing frees them all.
#pragma once

#include <atomic>
#include <cstdint>

namespace qw {

class LiveObject {
 public:
  static int64_t count() { return count_.load(); }

 protected:
  LiveObject() { ++count_; }
  LiveObject(const LiveObject&) { ++count_; }
  LiveObject& operator=(const LiveObject&) = default;
  ~LiveObject() { --count_; }

 private:
  static inline std::atomic<int64_t> count_{0};
};

}  // namespace qw

// Owned memory, aligned for vectors and, when large, for huge pages.
#pragma once

#include <cstddef>
#include <cstdint>

namespace qw {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }

  // Grows to at least `bytes`; what was inside is lost.
  void reserve(size_t bytes);
  void release();

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace qw

#include "aligned_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>
#include <utility>

namespace qw {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPage = 4096;

size_t rounded(size_t bytes, size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

}  // namespace

AlignedBuffer::AlignedBuffer(size_t bytes) {
  if (bytes == 0) return;
  const size_t alignment = bytes >= kHugePage ? kHugePage : kPage;
  // The size stays a multiple of pages only: rounding up to huge pages would cost memory.
  void* memory = nullptr;
  size_ = rounded(bytes, kPage);
  if (posix_memalign(&memory, alignment, size_) != 0) {
    size_ = 0;
    throw std::bad_alloc();
  }
  data_ = static_cast<char*>(memory);
#ifdef MADV_HUGEPAGE
  // A GEMV reads 64 bytes of a page per cycle or so: with 4 KiB pages it is bound by the TLB.
  if (bytes >= kHugePage) madvise(data_, size_, MADV_HUGEPAGE);
#endif
}

AlignedBuffer::~AlignedBuffer() { release(); }

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

void AlignedBuffer::reserve(size_t bytes) {
  if (bytes <= size_) return;
  release();
  *this = AlignedBuffer(bytes);
}

void AlignedBuffer::release() {
  std::free(data_);
  data_ = nullptr;
  size_ = 0;
}

}  // namespace qw

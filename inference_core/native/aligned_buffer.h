// Growing working memory: aligned to cache lines, in huge pages if large; growing discards its contents.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace aio {

template <typename T>
class AlignedBuffer {
 public:
  T* data() { return memory_.get(); }

  void reserve(size_t count) {
    if (count <= capacity_) return;
    constexpr size_t kHugePage = size_t(2) << 20;
    const size_t bytes = count * sizeof(T), alignment = bytes >= kHugePage ? kHugePage : 64;
    void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (!memory) throw std::bad_alloc();
#if defined(__linux__)
    if (alignment == kHugePage) madvise(memory, (bytes + alignment - 1) / alignment * alignment, MADV_HUGEPAGE);
#endif
    memory_.reset(static_cast<T*>(memory));
    capacity_ = count;
  }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> memory_;
  size_t capacity_ = 0;
};

}  // namespace aio

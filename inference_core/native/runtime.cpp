#include "runtime.h"

namespace aio {

std::vector<const KernelTable*> available_kernels() {
  std::vector<const KernelTable*> tables;
#if defined(AIO_HAS_AVX512) || defined(AIO_HAS_AVX2)
  __builtin_cpu_init();
#endif
#if defined(AIO_HAS_AVX512)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
    tables.push_back(kernels_avx512());
#endif
#if defined(AIO_HAS_AVX2)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) tables.push_back(kernels_avx2());
#endif
  tables.push_back(kernels_portable());
  return tables;
}

Runtime& runtime() {
  static Runtime* shared = [] {
    auto* made = new Runtime;  // never destroyed: worker threads may outlive static destruction
    made->kernels = available_kernels().front();
    return made;
  }();
  return *shared;
}

void Runtime::set_threads(int threads) {
  if (pool->threads() != threads) pool = std::make_unique<ThreadPool>(threads);
  scratch.resize(size_t(threads));
}

void Runtime::rouse() {
  const std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
  if (lock.owns_lock()) pool->rouse();
}

void Runtime::reserve_scratch(size_t floats) {
  for (auto& buffer : scratch)
    if (buffer.size() < floats) buffer.resize(floats);
}

}  // namespace aio

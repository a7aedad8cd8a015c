#include "runtime.h"

#include <string>

#include "amx_support.h"
#if defined(AIO_HAS_DOTPROD) || defined(AIO_HAS_I8MM)
#include <sys/auxv.h>
#endif

namespace aio {

namespace {

#if defined(AIO_HAS_DOTPROD) || defined(AIO_HAS_I8MM)
// Linux's HWCAP_ASIMDDP, HWCAP2_I8MM and HWCAP2_BF16; the latter two are younger than the C libraries of some builds.
constexpr unsigned long kSignedDotProducts = 1ul << 20, kIntegerMatrices = 1ul << 13, kBfloat16Matrices = 1ul << 14;
#endif

std::vector<const KernelTable*> found_kernels() {
  std::vector<const KernelTable*> tables;
#if defined(AIO_HAS_AVX512) || defined(AIO_HAS_AVX2)
  __builtin_cpu_init();
#endif
#if defined(AIO_HAS_AVX512)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni")) {
#if defined(AIO_HAS_AMX)
    if (may_use_amx())
      if (const KernelTable* amx = kernels_amx()) tables.push_back(amx);
#endif
#if defined(AIO_HAS_BF16)
    if (__builtin_cpu_supports("avx512bf16"))
      if (const KernelTable* bf16 = kernels_bf16()) tables.push_back(bf16);
#endif
    tables.push_back(kernels_avx512());
  }
#endif
#if defined(AIO_HAS_AVX2)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) tables.push_back(kernels_avx2());
#endif
#if defined(AIO_HAS_I8MM)
  if (getauxval(AT_HWCAP2) & kIntegerMatrices) {
#if defined(AIO_HAS_BFMMLA)
    if (getauxval(AT_HWCAP2) & kBfloat16Matrices)
      if (const KernelTable* bfmmla = kernels_bfmmla()) tables.push_back(bfmmla);
#endif
    tables.push_back(kernels_i8mm());
  }
#endif
#if defined(AIO_HAS_DOTPROD)
  if (getauxval(AT_HWCAP) & kSignedDotProducts) tables.push_back(kernels_dotprod());
#endif
#if defined(AIO_HAS_NEON)
  tables.push_back(kernels_neon());
#endif
  tables.push_back(kernels_portable());
  return tables;
}

}  // namespace

const std::vector<const KernelTable*>& available_kernels() {
  static const std::vector<const KernelTable*> tables = found_kernels();
  return tables;
}

const KernelTable* emulated_kernels() {
  const std::string vectors = available_kernels().front()->vectors;
#if defined(AIO_HAS_AVX512)
  if (vectors == "avx512") return kernels_avx512_emulated();
#endif
#if defined(AIO_HAS_AVX2)
  if (vectors == "avx2") return kernels_avx2_emulated();
#endif
#if defined(AIO_HAS_I8MM)
  if (vectors == "i8mm") return kernels_i8mm_emulated();
#endif
#if defined(AIO_HAS_DOTPROD)
  if (vectors == "dotprod") return kernels_dotprod_emulated();
#endif
#if defined(AIO_HAS_NEON)
  if (vectors == "neon") return kernels_neon_emulated();
#endif
  return kernels_portable_emulated();
}

Runtime& runtime() {
  static Runtime* shared = [] {
    auto* made = new Runtime;  // never destroyed: worker threads may outlive static destruction
    made->kernels = available_kernels().front();
    return made;
  }();
  return *shared;
}

void Runtime::set_threads(int threads, bool adapting) {
  if (pool->size() != threads) pool = std::make_unique<ThreadPool>(threads);
  choice = ThreadChoice(threads);
  adapts = adapting;
  use_threads(threads);
  scratch.resize(size_t(threads));
}

void Runtime::observe_step(double seconds, double lost) {
  if (!adapts) return;
  choice.observe(seconds, lost);
  use_threads(choice.threads());
}

void Runtime::use_threads(int threads) {
  pool->use(threads);
  threads_in_use.store(threads, std::memory_order_relaxed);
}

void Runtime::rouse() {
  const std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
  if (lock.owns_lock()) pool->rouse();
}

void Runtime::reserve_scratch(size_t floats) {
  for (auto& buffer : scratch) buffer.reserve(floats);
}

}  // namespace aio

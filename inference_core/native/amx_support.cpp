#include "amx_support.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#endif

namespace aio {

#if defined(__x86_64__) && defined(__linux__)
namespace {

constexpr unsigned kOsxsave = 1u << 27;                                       // leaf 1, ecx
constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;                  // leaf 7, edx
constexpr uint64_t kTileState = uint64_t(1) << 17 | uint64_t(1) << 18;        // XCR0: configuration and data
constexpr long kRequestPermission = 0x1023, kTileData = 18;                   // ARCH_REQ_XCOMP_PERM

uint64_t enabled_state() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t(high) << 32 | low;
}

}  // namespace

bool may_use_amx() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kOsxsave)) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (kAmxBf16 | kAmxTile)) != (kAmxBf16 | kAmxTile)) return false;
  if ((enabled_state() & kTileState) != kTileState) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#else
bool may_use_amx() { return false; }
#endif

}  // namespace aio

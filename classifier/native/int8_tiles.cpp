#include "int8_tiles.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define AIO_X86 1
#include <immintrin.h>
#endif
// Older compilers have no tiles.
#if defined(AIO_X86) && defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define AIO_AMX 1
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace aio {
namespace {

constexpr int kRows = 6;  // tokens whose sums fit the registers of a vector kernel

void tile_plain(const uint8_t* given, size_t stride, int rows, const int8_t* panel, size_t steps, const int32_t* start,
                int32_t* sums) {
  for (int r = 0; r < rows; r++) {
    int32_t* sum = sums + r * kPanel;
    std::copy_n(start, kPanel, sum);
    for (size_t s = 0; s < steps; s++) {
      const uint8_t* a = given + r * stride + 4 * s;
      const int8_t* w = panel + s * kPanel * 4;
      for (int c = 0; c < kPanel; c++)
        sum[c] += a[0] * w[4 * c] + a[1] * w[4 * c + 1] + a[2] * w[4 * c + 2] + a[3] * w[4 * c + 3];
    }
  }
}

#ifdef AIO_X86
// Signed activations, so no start: |w| times a with w's sign, both within 127, so that no pair of products exceeds 16
// bits.
__attribute__((target("avx2"))) void tile_avx2(const uint8_t* given, size_t stride, int rows, const int8_t* panel,
                                               size_t steps, const int32_t*, int32_t* sums) {
  const __m256i ones = _mm256_set1_epi16(1), zero = _mm256_set1_epi8(char(kZero));
  for (int first = 0; first < kPanel; first += 8) {
    __m256i sum[kRows];
    for (__m256i& one : sum) one = _mm256_setzero_si256();
    for (size_t s = 0; s < steps; s++) {
      const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel + (s * kPanel + first) * 4));
      const __m256i size = _mm256_abs_epi8(w);
      for (int r = 0; r < rows; r++) {
        int32_t four;
        std::memcpy(&four, given + r * stride + 4 * s, sizeof four);
        const __m256i a = _mm256_xor_si256(_mm256_set1_epi32(four), zero);
        const __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(a, w));
        sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(pairs, ones));
      }
    }
    for (int r = 0; r < rows; r++)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums + r * kPanel + first), sum[r]);
  }
}

template <int kCount>
__attribute__((target("avx512f,avx512bw,avx512vnni"))) void tile_vnni_of(const uint8_t* given, size_t stride,
                                                                         const int8_t* panel, size_t steps,
                                                                         const int32_t* start, int32_t* sums) {
  __m512i sum[kCount][4];
  for (int r = 0; r < kCount; r++)
    for (int c = 0; c < 4; c++) sum[r][c] = _mm512_loadu_si512(start + 16 * c);
  for (size_t s = 0; s < steps; s++) {
    const int8_t* w = panel + s * kPanel * 4;
    const __m512i w0 = _mm512_loadu_si512(w), w1 = _mm512_loadu_si512(w + 64), w2 = _mm512_loadu_si512(w + 128),
                  w3 = _mm512_loadu_si512(w + 192);
#pragma GCC unroll 6
    for (int r = 0; r < kCount; r++) {
      int32_t four;
      std::memcpy(&four, given + r * stride + 4 * s, sizeof four);
      const __m512i a = _mm512_set1_epi32(four);
      sum[r][0] = _mm512_dpbusd_epi32(sum[r][0], a, w0);
      sum[r][1] = _mm512_dpbusd_epi32(sum[r][1], a, w1);
      sum[r][2] = _mm512_dpbusd_epi32(sum[r][2], a, w2);
      sum[r][3] = _mm512_dpbusd_epi32(sum[r][3], a, w3);
    }
  }
  for (int r = 0; r < kCount; r++)
    for (int c = 0; c < 4; c++) _mm512_storeu_si512(sums + r * kPanel + 16 * c, sum[r][c]);
}

void tile_vnni(const uint8_t* given, size_t stride, int rows, const int8_t* panel, size_t steps, const int32_t* start,
               int32_t* sums) {
  switch (rows) {
    case 1: return tile_vnni_of<1>(given, stride, panel, steps, start, sums);
    case 2: return tile_vnni_of<2>(given, stride, panel, steps, start, sums);
    case 3: return tile_vnni_of<3>(given, stride, panel, steps, start, sums);
    case 4: return tile_vnni_of<4>(given, stride, panel, steps, start, sums);
    case 5: return tile_vnni_of<5>(given, stride, panel, steps, start, sums);
    default: return tile_vnni_of<6>(given, stride, panel, steps, start, sums);
  }
}

bool has_vnni() { return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni"); }
#endif

#ifdef AIO_AMX
constexpr int kSide = 16, kDepth = 64;  // tokens and channels of a tile of sums, inputs of a product

// The compiler does not know what memory these instructions read and write.
inline void memory_is_used() { asm volatile("" ::: "memory"); }

// All tiles have 16 rows of 64 bytes: 0 to 3 are the sums of 16 tokens by 64 channels, 4 the tokens, 5 and 6 weights.
__attribute__((target("amx-tile,amx-int8"))) void block_amx(const uint8_t* given, size_t stride, const int8_t* panel,
                                                            size_t steps, const int32_t* start, int32_t* sums) {
  constexpr int kRow = kPanel * 4;  // bytes of a row of sums, and of four inputs' weights
  for (int r = 0; r < kSide; r++) std::copy_n(start, kPanel, sums + r * kPanel);
  memory_is_used();
  _tile_loadd(0, sums, kRow);
  _tile_loadd(1, sums + 16, kRow);
  _tile_loadd(2, sums + 32, kRow);
  _tile_loadd(3, sums + 48, kRow);
  for (size_t s = 0; s < steps; s += kDepth / 4) {
    const int8_t* w = panel + s * kRow;
    _tile_loadd(4, given + 4 * s, stride);
    _tile_loadd(5, w, kRow);
    _tile_loadd(6, w + 64, kRow);
    _tile_dpbusd(0, 4, 5);
    _tile_loadd(5, w + 128, kRow);
    _tile_dpbusd(1, 4, 6);
    _tile_loadd(6, w + 192, kRow);
    _tile_dpbusd(2, 4, 5);
    _tile_dpbusd(3, 4, 6);
  }
  _tile_stored(0, sums, kRow);
  _tile_stored(1, sums + 16, kRow);
  _tile_stored(2, sums + 32, kRow);
  _tile_stored(3, sums + 48, kRow);
  memory_is_used();
}

// Fewer than 16 tokens, and widths that are no multiples of 64, as AVX-512 computes them.
void tile_amx(const uint8_t* given, size_t stride, int rows, const int8_t* panel, size_t steps, const int32_t* start,
              int32_t* sums) {
  if (rows == kSide && steps % (kDepth / 4) == 0) return block_amx(given, stride, panel, steps, start, sums);
  for (int r = 0; r < rows; r += kRows)
    tile_vnni(given + r * stride, stride, std::min(kRows, rows - r), panel, steps, start, sums + r * kPanel);
}

__attribute__((target("amx-tile"))) void shape_tiles() {
  struct alignas(64) {
    uint8_t palette = 1, first = 0, unused[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } shapes;
  for (int tile = 0; tile < 7; tile++) shapes.bytes[tile] = kDepth, shapes.rows[tile] = kSide;
  memory_is_used();
  _tile_loadconfig(&shapes);
}
__attribute__((target("amx-tile"))) void release_tiles() { _tile_release(); }

// Whether the processor has INT8 tiles, and the system keeps their state for this process.
bool may_use_amx() {
  constexpr unsigned kOsxsave = 1u << 27, kAmx = 1u << 24 | 1u << 25;  // leaf 1 ecx; leaf 7 edx: tiles, INT8
  constexpr uint64_t kTileState = uint64_t(1) << 17 | uint64_t(1) << 18;  // XCR0: configuration and data
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kOsxsave)) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kAmx) != kAmx) return false;
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if (((uint64_t(high) << 32 | low) & kTileState) != kTileState) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

}  // namespace

Kernel best_kernel(long most) {
#ifdef AIO_AMX
  static const bool amx = has_vnni() && may_use_amx();
  if (most >= 3 && amx) return {tile_amx, kSide, shape_tiles, release_tiles};
#endif
#ifdef AIO_X86
  if (most >= 2 && has_vnni()) return {tile_vnni, kRows};
  if (most >= 1 && __builtin_cpu_supports("avx2")) return {tile_avx2, kRows};
#endif
  (void)most;
  return {tile_plain, kRows};
}

}  // namespace aio

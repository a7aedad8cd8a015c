// Linear layers of packed 4-bit and 8-bit weights on INT8 activations; `inference_core/linear/panels.py` writes the
// layouts. A tile is a few rows times one or two panels. The sums of a row run over the groups in order, whatever the
// tile: the same bits alone and in any batch.
#pragma once
#include "code_sums.h"
#include "tiles.h"

namespace aio {
namespace AIO_ISA {

// Rows and panels of the largest tile, by measurement: as many sums as fit in registers with the weights.
#if defined(AIO_AVX512)
constexpr int kIntegerRows = 6, kIntegerPanels = 2;
constexpr bool kUnpacks = true;
#else
constexpr int kIntegerRows = 4, kIntegerPanels = 1;
constexpr bool kUnpacks = false;  // without VNNI a product takes several instructions, and unpacking is little of it
#endif

// Whether unpacking 4-bit panels once for `rows` rows pays, by measurement. Unpacked they take twice the room, so that long
// ones no longer fit the first-level cache. AMD's cores unpack on vector pipes that do not multiply: never there.
AIO_INLINE bool pays_to_unpack(int rows, int groups) {
#if defined(__x86_64__)
  return rows >= 16 + groups / 2 && !__builtin_cpu_is("amd");
#else
  return rows >= 16 + groups / 2;
#endif
}

// One group of one panel: 256 bytes of codes, 16 scales, 16 minima.
struct Int4 {
  typedef Nibbles Sum;
  static constexpr bool kMinima = true, kNibbles = true;
  static constexpr int kCentre = 0, kGroupLines = 5;

  const uint8_t* codes;

  AIO_MEMBER static Int4 of(const LinearArgs& a, int panel) { return {a.panels + panel * a.panel_bytes}; }
  AIO_MEMBER const uint16_t* scales() const { return reinterpret_cast<const uint16_t*>(codes + 256); }
  AIO_MEMBER Floats scale() const { return floats_from_half(scales()); }
  AIO_MEMBER Floats minimum() const { return floats_from_half(scales() + kLanes); }
  AIO_MEMBER void next() { codes += 320; }
};

// Scales of all groups first (so that codes start at a cache line), then `Bytes` of codes per group, whose zero is
// `Centre`.
template <typename SumType, int Bytes, int Centre>
struct Centred {
  typedef SumType Sum;
  static constexpr bool kMinima = false, kNibbles = Bytes == 256;
  static constexpr int kCentre = Centre, kGroupLines = Bytes / 64 + 1;

  const uint8_t* codes;
  const uint16_t* halves;

  AIO_MEMBER static Centred of(const LinearArgs& a, int panel) {
    const uint8_t* p = a.panels + panel * a.panel_bytes;
    return {p + (a.k / kGroup * 32 + 63) / 64 * 64, reinterpret_cast<const uint16_t*>(p)};
  }
  AIO_MEMBER const uint16_t* scales() const { return halves; }
  AIO_MEMBER Floats scale() const { return floats_from_half(halves); }
  AIO_MEMBER void next() {
    codes += Bytes;
    halves += kLanes;
  }
};
typedef Centred<CentredNibbles, 256, 8> Int4Centred;
typedef Centred<Octets, 512, 128> Int8;

// A panel of 4-bit weights as many rows share it, in the thread's scratch: per group 512 codes in bytes, then scales and
// minima in float32. Of a product of 6 rows and 2 panels with packed weights a fifth is unpacking (32 of 176 vector
// operations, 96 of which multiply).
template <typename Packed>
struct Unpacked {
  typedef typename Packed::Sum Sum;
  static constexpr bool kMinima = Packed::kMinima, kNibbles = false;
  static constexpr int kCentre = Packed::kCentre, kGroupLines = Packed::kGroupLines;
  static constexpr int kGroupBytes = 512 + (kMinima ? 128 : 64);

  const uint8_t* codes;

  AIO_MEMBER Floats scale() const { return load_floats(reinterpret_cast<const float*>(codes + 512)); }
  AIO_MEMBER Floats minimum() const { return load_floats(reinterpret_cast<const float*>(codes + 576)); }
  AIO_MEMBER void next() { codes += kGroupBytes; }

  // Unpacks `groups` of `weights` to `to`, at a cache line.
  AIO_MEMBER static Unpacked of(Packed weights, int groups, uint8_t* to) {
    const Unpacked unpacked{to};
    for (int g = 0; g < groups; ++g, weights.next(), to += kGroupBytes) {
      AIO_UNROLL
      for (int j = 0; j < 4; ++j) {
        const Ints packed = load_ints(weights.codes + 64 * j);
        store_ints(to + 128 * j, low_nibbles(packed));
        store_ints(to + 128 * j + 64, high_nibbles(packed));
      }
      store_floats(reinterpret_cast<float*>(to + 512), weights.scale());
      if constexpr (kMinima) store_floats(reinterpret_cast<float*>(to + 576), weights.minimum());
    }
    return unpacked;
  }
};

// Starts the results of a tile with the products of the outliers, which share no scale with other inputs.
template <int Rows, int Panels>
AIO_INLINE void start_with_outliers(const LinearArgs& a, int row, int panel, Floats (&y)[Rows][Panels]) {
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r)
    AIO_UNROLL
    for (int p = 0; p < Panels; ++p) y[r][p] = floats(0);
  const float* x = a.outlier_x + row * a.ld_outliers;
  for (int o = 0; o < a.outliers; ++o) {
    Floats w[Panels];
    AIO_UNROLL
    for (int p = 0; p < Panels; ++p) w[p] = floats_from_half(a.outlier_panels + (int64_t(panel + p) * a.outliers + o) * kLanes);
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const Floats v = floats(x[r * a.ld_outliers + o]);
      AIO_UNROLL
      for (int p = 0; p < Panels; ++p) add_product(y[r][p], w[p], v);
    }
  }
}

// Adds one group for all rows and panels of a tile to sums that have been started.
template <typename Weights, int Rows, int Panels>
AIO_INLINE void nibble_sums(const Weights (&w)[Panels], const QuantizedGroup* (&x)[Rows],
                            typename Weights::Sum (&sum)[Rows][Panels]) {
  AIO_UNROLL
  for (int j = 0; j < 4; ++j) {
    Ints packed[Panels], codes[Panels];
    AIO_UNROLL
    for (int p = 0; p < Panels; ++p) {
      packed[p] = load_ints(w[p].codes + 64 * j);
      codes[p] = low_nibbles(packed[p]);
    }
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const Four f = four(x[r]->q + 8 * j);
      AIO_UNROLL
      for (int p = 0; p < Panels; ++p) sum[r][p].add(codes[p], f);
    }
    AIO_UNROLL
    for (int p = 0; p < Panels; ++p) codes[p] = high_nibbles(packed[p]);
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const Four f = four(x[r]->q + 8 * j + 4);
      AIO_UNROLL
      for (int p = 0; p < Panels; ++p) sum[r][p].add(codes[p], f);
    }
  }
}

// The same of codes in bytes.
template <typename Weights, int Rows, int Panels>
AIO_INLINE void byte_sums(const Weights (&w)[Panels], const QuantizedGroup* (&x)[Rows],
                           typename Weights::Sum (&sum)[Rows][Panels]) {
  typedef typename Weights::Sum Sum;
  AIO_UNROLL
  for (int j = 0; j < 8; ++j) {
    typename Sum::Codes codes[Panels];
    AIO_UNROLL
    for (int p = 0; p < Panels; ++p) codes[p] = Sum::codes(load_ints(w[p].codes + 64 * j));
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const Four f = four(x[r]->q + 4 * j);
      AIO_UNROLL
      for (int p = 0; p < Panels; ++p) sum[r][p].add(codes[p], f);
    }
  }
}

// Rows [row, row + Rows) times the panels `weights`, of which `panel` is the first.
template <typename Weights, int Rows, int Panels>
static __attribute__((noinline)) void integer_tile(const LinearArgs& a, int row, int panel,
                                                   const Weights (&weights)[Panels], Ahead ahead) {
  const int groups = a.k / kGroup;
  const QuantizedGroup* x[Rows];
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r) x[r] = a.quantized + int64_t(row + r) * groups;
  Weights w[Panels];
  Floats y[Rows][Panels];
  AIO_UNROLL
  for (int p = 0; p < Panels; ++p) w[p] = weights[p];
  start_with_outliers<Rows, Panels>(a, row, panel, y);
  for (int g = 0; g < groups; ++g) {
    ahead.step<Panels * Weights::kGroupLines>();
    typename Weights::Sum sum[Rows][Panels];
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r)
      AIO_UNROLL
      for (int p = 0; p < Panels; ++p) {
        if constexpr (Weights::kCentre)
          sum[r][p].start(Weights::kCentre == 8 ? x[r]->nibble_correction : x[r]->correction);
        else
          sum[r][p].clear();
      }
    if constexpr (Weights::kNibbles)
      nibble_sums<Weights, Rows, Panels>(w, x, sum);
    else
      byte_sums<Weights, Rows, Panels>(w, x, sum);
    Floats d[Panels], m[Panels];
    AIO_UNROLL
    for (int p = 0; p < Panels; ++p) {
      d[p] = w[p].scale();
      if constexpr (Weights::kMinima) m[p] = w[p].minimum();
      w[p].next();
    }
    AIO_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const Floats s = floats(x[r]->scale), o = floats(x[r]->offset);
      AIO_UNROLL
      for (int p = 0; p < Panels; ++p) {
        add_product(y[r][p], to_floats(sum[r][p].total()), d[p] * s);
        if constexpr (Weights::kMinima) add_product(y[r][p], m[p], o);
      }
      ++x[r];
    }
  }
  AIO_UNROLL
  for (int r = 0; r < Rows; ++r)
    AIO_UNROLL
    for (int p = 0; p < Panels; ++p) finish(a, row + r, (panel + p) * kLanes, y[r][p]);
}

// All rows against the panels `weights`; meanwhile those at `next` are fetched.
template <typename Weights, int Panels>
AIO_INLINE void integer_rows(const LinearArgs& a, int panel, const Weights (&weights)[Panels], const uint8_t* next) {
  const int tiles = (a.rows + kIntegerRows - 1) / kIntegerRows, groups = a.k / kGroup;
  for_tiles<kIntegerRows>(a.rows, [&](auto count, int row, int tile) AIO_LAMBDA {
    const Ahead ahead = Ahead::of(next, Panels * Weights::kGroupLines, groups, tile, tiles);
    integer_tile<Weights, decltype(count)::value, Panels>(a, row, panel, weights, ahead);
  });
}

template <typename Weights, int Panels>
AIO_INLINE void integer_panels(const LinearArgs& a, int panel, const uint8_t* next) {
  Weights packed[Panels];
  for (int p = 0; p < Panels; ++p) packed[p] = Weights::of(a, panel + p);
  if constexpr (kUnpacks && Weights::kNibbles) {
    typedef Unpacked<Weights> Shared;
    const int groups = a.k / kGroup;
    if (pays_to_unpack(a.rows, groups)) {
      uint8_t* room = reinterpret_cast<uint8_t*>(a.scratch);
      Shared unpacked[Panels];
      for (int p = 0; p < Panels; ++p) unpacked[p] = Shared::of(packed[p], groups, room + p * groups * Shared::kGroupBytes);
      return integer_rows<Shared, Panels>(a, panel, unpacked, next);
    }
  }
  integer_rows<Weights, Panels>(a, panel, packed, next);
}

template <typename Weights>
AIO_INLINE void integer_linear(const LinearArgs& a, int panel, int last_panel) {
  for (; panel + kIntegerPanels <= last_panel; panel += kIntegerPanels) {
    const uint8_t* next = a.panels + (panel + kIntegerPanels) * a.panel_bytes;
    integer_panels<Weights, kIntegerPanels>(a, panel, panel + kIntegerPanels < last_panel ? next : a.next);
  }
  for (; panel < last_panel; ++panel) integer_panels<Weights, 1>(a, panel, nullptr);
}

static void linear_int4(const LinearArgs& a, int first, int last) { integer_linear<Int4>(a, first, last); }
static void linear_int4_centred(const LinearArgs& a, int first, int last) {
  integer_linear<Int4Centred>(a, first, last);
}
static void linear_int8(const LinearArgs& a, int first, int last) { integer_linear<Int8>(a, first, last); }

}  // namespace AIO_ISA
}  // namespace aio

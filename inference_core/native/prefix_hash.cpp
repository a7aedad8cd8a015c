// BLAKE2b (RFC 7693) with 16-byte digests over (parent digest, token ids), block after block, in one call.
#include "prefix_hash.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace aio {
namespace {

constexpr size_t DIGEST = 16;
constexpr size_t CHUNK = 128;

constexpr uint64_t IV[8] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
                            0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
constexpr uint8_t SIGMA[12][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3}};

inline uint64_t rotate(uint64_t x, int n) { return (x >> n) | (x << (64 - n)); }

inline void mix(uint64_t* v, int a, int b, int c, int d, uint64_t x, uint64_t y) {
  v[a] += v[b] + x;
  v[d] = rotate(v[d] ^ v[a], 32);
  v[c] += v[d];
  v[b] = rotate(v[b] ^ v[c], 24);
  v[a] += v[b] + y;
  v[d] = rotate(v[d] ^ v[a], 16);
  v[c] += v[d];
  v[b] = rotate(v[b] ^ v[c], 63);
}

template <int round>
inline void mix_round(uint64_t* v, const uint64_t* m) {
  constexpr const uint8_t* s = SIGMA[round];
  mix(v, 0, 4, 8, 12, m[s[0]], m[s[1]]);
  mix(v, 1, 5, 9, 13, m[s[2]], m[s[3]]);
  mix(v, 2, 6, 10, 14, m[s[4]], m[s[5]]);
  mix(v, 3, 7, 11, 15, m[s[6]], m[s[7]]);
  mix(v, 0, 5, 10, 15, m[s[8]], m[s[9]]);
  mix(v, 1, 6, 11, 12, m[s[10]], m[s[11]]);
  mix(v, 2, 7, 8, 13, m[s[12]], m[s[13]]);
  mix(v, 3, 4, 9, 14, m[s[14]], m[s[15]]);
}

void compress(uint64_t* h, const uint8_t* chunk, uint64_t bytes_so_far, bool last) {
  uint64_t m[16], v[16];
  std::memcpy(m, chunk, CHUNK);
  for (int i = 0; i < 8; i++) {
    v[i] = h[i];
    v[i + 8] = IV[i];
  }
  v[12] ^= bytes_so_far;
  if (last) v[14] = ~v[14];
  mix_round<0>(v, m);
  mix_round<1>(v, m);
  mix_round<2>(v, m);
  mix_round<3>(v, m);
  mix_round<4>(v, m);
  mix_round<5>(v, m);
  mix_round<6>(v, m);
  mix_round<7>(v, m);
  mix_round<8>(v, m);
  mix_round<9>(v, m);
  mix_round<10>(v, m);
  mix_round<11>(v, m);
  for (int i = 0; i < 8; i++) h[i] ^= v[i] ^ v[i + 8];
}

// `message` is padded with zeros to a multiple of CHUNK; `length` is without them.
void blake2b_128(const uint8_t* message, size_t length, uint8_t* digest) {
  uint64_t h[8];
  std::memcpy(h, IV, sizeof h);
  h[0] ^= 0x01010000 ^ DIGEST;
  size_t done = 0;
  for (; length - done > CHUNK; done += CHUNK) compress(h, message + done, done + CHUNK, false);
  compress(h, message + done, length, true);
  std::memcpy(digest, h, DIGEST);
}

bool read_token_ids(PyObject* list, Py_ssize_t start, Py_ssize_t count, uint8_t* out) {
  for (Py_ssize_t i = 0; i < count; i++) {
    const long long token = PyLong_AsLongLong(PyList_GET_ITEM(list, start + i));
    if (token == -1 && PyErr_Occurred()) return false;
    if (token < 0 || token > 0xffffffffLL) {
      PyErr_Format(PyExc_OverflowError, "token id %lld is not an unsigned 32-bit integer", token);
      return false;
    }
    const uint32_t id = uint32_t(token);
    std::memcpy(out + i * sizeof id, &id, sizeof id);
  }
  return true;
}

}  // namespace

// (parent bytes, token_ids list, first block, number of blocks, tokens per block) -> list of digests.
PyObject* chain_digests(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (count != 5 || !PyBytes_Check(values[0]) || PyBytes_GET_SIZE(values[0]) != DIGEST || !PyList_Check(values[1])) {
    PyErr_SetString(PyExc_TypeError, "chain_digests takes 16 parent bytes, a list of token ids and three numbers");
    return nullptr;
  }
  const Py_ssize_t first = PyLong_AsSsize_t(values[2]), blocks = PyLong_AsSsize_t(values[3]);
  const Py_ssize_t block_size = PyLong_AsSsize_t(values[4]);
  if (PyErr_Occurred()) return nullptr;
  const Py_ssize_t available = PyList_GET_SIZE(values[1]);
  if (block_size < 1 || first < 0 || blocks < 0 || first > available || blocks > available ||
      block_size > available / std::max<Py_ssize_t>(first + blocks, 1)) {
    if (blocks == 0) return PyList_New(0);
    PyErr_Format(PyExc_ValueError, "%zd tokens have no blocks %zd to %zd of %zd tokens", available, first,
                 first + blocks - 1, block_size);
    return nullptr;
  }
  const size_t length = DIGEST + size_t(block_size) * sizeof(uint32_t);
  std::vector<uint8_t> message((length + CHUNK - 1) / CHUNK * CHUNK);
  std::memcpy(message.data(), PyBytes_AS_STRING(values[0]), DIGEST);
  PyObject* digests = PyList_New(blocks);
  if (!digests) return nullptr;
  for (Py_ssize_t i = 0; i < blocks; i++) {
    uint8_t digest[DIGEST];
    PyObject* name = nullptr;
    if (read_token_ids(values[1], (first + i) * block_size, block_size, message.data() + DIGEST)) {
      blake2b_128(message.data(), length, digest);
      name = PyBytes_FromStringAndSize(reinterpret_cast<char*>(digest), DIGEST);
    }
    if (!name) {
      Py_DECREF(digests);
      return nullptr;
    }
    PyList_SET_ITEM(digests, i, name);
    std::memcpy(message.data(), digest, DIGEST);
  }
  return digests;
}

}  // namespace aio

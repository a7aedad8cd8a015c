// The words of a turn by their hashes, and tables by word; `classifier.features.stray_text.tokenise` is the reference.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "python_data.h"

namespace aio {

// A word by two hashes: FNV-1a, of which collisions within a turn or with a table's words are negligible, and CRC-32.
struct Word {
  uint64_t hash;
  uint32_t crc;
};
using Words = std::vector<Word>;

constexpr uint64_t kNoLetters = 0xcbf29ce484222325u;
constexpr uint64_t with_letter(uint64_t hash, unsigned char letter) { return (hash ^ letter) * 0x100000001b3u; }
constexpr uint64_t hash_of(std::string_view word) {
  uint64_t hash = kNoLetters;
  for (const char letter : word) hash = with_letter(hash, (unsigned char)letter);
  return hash;
}

// Of a text of ASCII in lower case.
Words words_of(std::string_view lower);
// Of a sequence of words; false with a Python error set.
bool words_of(PyObject* tokens, Words& words);
std::size_t distinct(const Words& words);
// An ASCII text in lower case.
std::string lowered(const char* text, std::size_t size);

// Numbers that are not negative, by word. Open addressing: a miss costs one look.
class WordTable {
 public:
  // Without words, with room for so many.
  void clear(std::size_t words);
  void add(uint64_t hash, int32_t number);
  // From a dict of words; false with a Python error set.
  bool fill(PyObject* numbers);
  // Asks for what `find` will read: a large table is not in the cache.
  void prefetch(uint64_t hash) const { __builtin_prefetch(&entries_[place(hash)]); }
  int32_t find(uint64_t hash, int32_t absent) const {
    for (uint64_t at = place(hash); entries_[at].number >= 0; at = (at + 1) & mask_)
      if (entries_[at].hash == hash) return entries_[at].number;
    return absent;
  }

 private:
  struct Entry {
    uint64_t hash;
    int32_t number;  // negative in a free place
  };
  // The upper bits of a product, since the last bits of that hash depend on the last bits of the letters alone.
  uint64_t place(uint64_t hash) const { return (hash * 0x9e3779b97f4a7c15u >> 32) & mask_; }
  std::vector<Entry> entries_{{0, -1}};
  uint64_t mask_ = 0;
};

}  // namespace aio

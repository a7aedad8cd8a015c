// Splitting a turn into words, and looking them up.
#include "words.h"

#include <algorithm>
#include <array>

namespace aio {
namespace {

constexpr uint32_t kStart = ~0u;

constexpr std::array<uint32_t, 256> kCrc = [] {
  std::array<uint32_t, 256> made{};
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; bit++) value = value & 1 ? 0xEDB88320u ^ (value >> 1) : value >> 1;
    made[i] = value;
  }
  return made;
}();

uint32_t with_byte(uint32_t crc, unsigned char byte) { return kCrc[(crc ^ byte) & 255] ^ (crc >> 8); }

// Per ASCII character of a lower-case text what it is in a word: itself, '0' for a digit, a space between words.
constexpr std::array<unsigned char, 128> kLetter = [] {
  std::array<unsigned char, 128> made{};
  for (int c = 0; c < 128; c++) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'), digit = c >= '0' && c <= '9';
    const bool space = c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f);
    const bool mark = c > ' ' && c < 0x7f && !letter && !digit;
    made[size_t(c)] = (unsigned char)(digit ? '0' : space || mark ? ' ' : c);
  }
  return made;
}();

bool is_dropped(char c) { return c == '\'' || c == '`'; }

}  // namespace

Words words_of(std::string_view lower) {
  Words words;
  words.reserve(lower.size() / 4 + 1);
  Word word{kNoLetters, kStart};
  bool open = false;
  const auto close = [&] {
    if (open) words.push_back({word.hash, ~word.crc});
    word = {kNoLetters, kStart}, open = false;
  };
  for (const char c : lower) {
    if (is_dropped(c)) continue;
    const unsigned char letter = kLetter[size_t(c)];
    if (letter == ' ') {
      close();
      continue;
    }
    word.hash = with_letter(word.hash, letter), word.crc = with_byte(word.crc, letter), open = true;
  }
  close();
  return words;
}

bool words_of(PyObject* tokens, Words& words) {
  PyObject* sequence = PySequence_Fast(tokens, "tokens are no sequence");
  if (!sequence) return false;
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(sequence);
  words.reserve(size_t(count));
  bool whole = true;
  for (Py_ssize_t i = 0; whole && i < count; i++) {
    Py_ssize_t size;
    const char* text = PyUnicode_AsUTF8AndSize(PySequence_Fast_GET_ITEM(sequence, i), &size);
    whole = text != nullptr;
    if (!whole) break;
    uint32_t crc = kStart;
    for (Py_ssize_t at = 0; at < size; at++) crc = with_byte(crc, (unsigned char)text[at]);
    words.push_back({hash_of({text, size_t(size)}), ~crc});
  }
  Py_DECREF(sequence);
  return whole;
}

size_t distinct(const Words& words) {
  // Places by hash; the sum of a turn's words is bounded, and a longer one is sorted.
  constexpr size_t kPlaces = 1024;
  if (words.size() > kPlaces / 2) {
    std::vector<uint64_t> hashes;
    for (const Word& word : words) hashes.push_back(word.hash);
    std::sort(hashes.begin(), hashes.end());
    return size_t(std::unique(hashes.begin(), hashes.end()) - hashes.begin());
  }
  std::array<uint64_t, kPlaces> seen{};
  size_t found = 0;
  for (const Word& word : words) {
    size_t at = (word.hash >> 32) % kPlaces;
    while (seen[at] && seen[at] != word.hash) at = (at + 1) % kPlaces;
    found += !seen[at], seen[at] = word.hash;
  }
  return found;
}

std::string lowered(const char* text, size_t size) {
  std::string lower(text, size);
  for (char& c : lower) c = char(c | (c >= 'A' && c <= 'Z' ? 32 : 0));
  return lower;
}

void WordTable::clear(size_t words) {
  size_t places = 16;
  while (places < 2 * words) places *= 2;
  entries_.assign(places, {0, -1}), mask_ = places - 1;
}

void WordTable::add(uint64_t hash, int32_t number) {
  uint64_t free = place(hash);
  while (entries_[free].number >= 0) free = (free + 1) & mask_;
  entries_[free] = {hash, number};
}

bool WordTable::fill(PyObject* numbers) {
  clear(size_t(PyDict_GET_SIZE(numbers)));
  PyObject *word, *number;
  for (Py_ssize_t at = 0; PyDict_Next(numbers, &at, &word, &number);) {
    Py_ssize_t size;
    const char* text = PyUnicode_AsUTF8AndSize(word, &size);
    const long value = text ? PyLong_AsLong(number) : -1;
    if (PyErr_Occurred()) return false;
    if (value < 0 || value > INT32_MAX) {
      PyErr_Format(PyExc_ValueError, "a word has the number %ld", value);
      return false;
    }
    add(hash_of({text, size_t(size)}), int32_t(value));
  }
  return true;
}

}  // namespace aio

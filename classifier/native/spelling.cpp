// Misspelt words that are one edit away from a frequent one; `classifier.features.plain_form` is the reference.
#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "spelling.h"
#include "words.h"

namespace aio {
namespace {

constexpr size_t kLeast = 5, kMost = 24;
constexpr int kBits = 16;

struct Entry {
  uint32_t hash, word;
};

}  // namespace

// Every word and every text that it is without one letter, by hash: two texts of distance 1 have one of these in common.
struct Spelling {
  static constexpr const char* kName = "classifier.spelling";
  std::vector<std::string> words;  // the most frequent first
  WordTable places;
  std::vector<Entry> entries;      // by hash
  std::vector<uint32_t> from;      // where the entries of each value of the hash's first bits begin
};

namespace {

// FNV-1a of a text without its letter `left_out`, finished as MurmurHash3 does, so that the first bits are even.
uint32_t hash_without(std::string_view text, size_t left_out) {
  uint32_t hash = 0x811C9DC5u;
  for (size_t i = 0; i < text.size(); i++)
    if (i != left_out) hash = (hash ^ uint8_t(text[i])) * 0x01000193u;
  hash = (hash ^ hash >> 16) * 0x85EBCA6Bu;
  return hash ^ hash >> 13;
}

// Whether one letter left out of `longer` gives `shorter`.
bool one_more(std::string_view longer, std::string_view shorter) {
  const size_t at = size_t(std::mismatch(shorter.begin(), shorter.end(), longer.begin()).first - shorter.begin());
  return longer.substr(at + 1) == shorter.substr(at);
}

// Whether a letter is another one, missing, too many, or exchanged with the next; what ends otherwise, in one
// letter, is another form of the word.
bool one_edit(std::string_view a, std::string_view b) {
  if (a.size() == b.size()) {
    const size_t at = size_t(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin());
    if (at + 1 >= a.size()) return false;
    if (a.substr(at + 1) == b.substr(at + 1)) return true;
    return a[at] == b[at + 1] && a[at + 1] == b[at] && a.substr(at + 2) == b.substr(at + 2);
  }
  const std::string_view longer = a.size() > b.size() ? a : b, shorter = a.size() > b.size() ? b : a;
  if (longer.size() != shorter.size() + 1) return false;
  return one_more(longer, shorter) && longer.substr(0, shorter.size()) != shorter;
}

template <typename Visit>
void entries_of(const Spelling& spelling, uint32_t hash, Visit visit) {
  const uint32_t first = hash >> (32 - kBits);
  for (uint32_t i = spelling.from[first]; i < spelling.from[first + 1]; i++)
    if (spelling.entries[i].hash == hash) visit(spelling.entries[i].word);
}

// The place of the most frequent word that is one edit away; the number of words without one.
uint32_t nearest(const Spelling& spelling, std::string_view word) {
  uint32_t best = uint32_t(spelling.words.size());
  for (size_t left_out = 0; left_out <= word.size(); left_out++)
    entries_of(spelling, hash_without(word, left_out), [&](uint32_t at) {
      if (at < best && one_edit(word, spelling.words[at])) best = at;
    });
  return best;
}

struct Run {
  Py_ssize_t start, end;
  std::string word;
};

bool is_letter(Py_UCS4 c) { return (c | 32) >= 'a' && (c | 32) <= 'z' && c < 128; }
bool is_of_run(Py_UCS4 c) { return is_letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '\'' || c >= 128; }

// The words that are not known, of a text of so many characters, where at least one in three is known; else none.
template <typename At>
std::vector<Run> unknown_words(const Spelling& spelling, Py_ssize_t size, At at) {
  std::vector<Run> unknown;
  size_t words = 0;
  std::string word;
  for (Py_ssize_t i = 0; i < size;) {
    const Py_ssize_t start = i;
    bool letters = true;
    word.clear();
    for (; i < size; i++) {
      const Py_UCS4 c = at(i);
      if (!is_of_run(c)) break;
      letters &= is_letter(c);
      if (letters && word.size() <= kMost) word += char(c | 32);
    }
    if (i == start) i++;
    if (!letters || word.size() < kLeast || word.size() > kMost) continue;
    words++;
    if (spelling.places.find(hash_of(word), -1) < 0) unknown.push_back({start, i, word});
  }
  if (words > 3 * (words - unknown.size())) unknown.clear();
  return unknown;
}

}  // namespace

const Spelling* spelling_in(PyObject* capsule) { return held<Spelling>(capsule); }

bool is_misspelt(const Spelling& spelling, std::string_view lower) {
  const auto at = [&](Py_ssize_t i) { return Py_UCS4(lower[size_t(i)]); };
  const std::vector<Run> unknown = unknown_words(spelling, Py_ssize_t(lower.size()), at);
  return std::any_of(unknown.begin(), unknown.end(),
                     [&](const Run& run) { return nearest(spelling, run.word) < spelling.words.size(); });
}

void correct(const Spelling& spelling, std::u32string& text) {
  const auto at = [&](Py_ssize_t i) { return Py_UCS4(text[size_t(i)]); };
  const std::vector<Run> unknown = unknown_words(spelling, Py_ssize_t(text.size()), at);
  // From the last on, so that the places of the others stay.
  for (auto run = unknown.rbegin(); run != unknown.rend(); run++) {
    const uint32_t meant = nearest(spelling, run->word);
    if (meant == spelling.words.size()) continue;
    const std::string& word = spelling.words[meant];
    text.replace(size_t(run->start), size_t(run->end - run->start), std::u32string(word.begin(), word.end()));
  }
}

// (list of words, the most frequent first) -> capsule.
PyObject* make_spelling(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 1, "make_spelling")) return nullptr;
  if (!PyList_Check(values[0])) return PyErr_Format(PyExc_TypeError, "make_spelling takes a list of words");
  auto* made = new Spelling{};
  made->places.clear(size_t(PyList_GET_SIZE(values[0])));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values[0]); i++) {
    Py_ssize_t size;
    const char* word = PyUnicode_AsUTF8AndSize(PyList_GET_ITEM(values[0], i), &size);
    if (!word) {
      delete made;
      return nullptr;
    }
    made->words.emplace_back(word, size_t(size));
    made->places.add(hash_of(made->words.back()), int32_t(i));
    for (size_t left_out = 0; left_out <= size_t(size); left_out++)
      made->entries.push_back({hash_without(made->words.back(), left_out), uint32_t(i)});
  }
  std::sort(made->entries.begin(), made->entries.end(), [](const Entry& a, const Entry& b) { return a.hash < b.hash; });
  made->from.assign((1 << kBits) + 1, 0);
  for (const Entry& entry : made->entries) made->from[(entry.hash >> (32 - kBits)) + 1]++;
  for (size_t i = 1; i < made->from.size(); i++) made->from[i] += made->from[i - 1];
  return capsule(made);
}

// (spelling, text) -> list of (start, end, the word meant) of its misspelt words; empty where most are unknown.
PyObject* corrections(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 2, "corrections")) return nullptr;
  const Spelling* spelling = held<Spelling>(values[0]);
  if (!spelling) return nullptr;
  if (!PyUnicode_Check(values[1])) return PyErr_Format(PyExc_TypeError, "corrections takes a text");
  const Py_ssize_t size = PyUnicode_GET_LENGTH(values[1]);
  const int kind = PyUnicode_KIND(values[1]);
  const void* text = PyUnicode_DATA(values[1]);
  const auto at = [&](Py_ssize_t i) { return PyUnicode_READ(kind, text, i); };
  const std::vector<Run> unknown = unknown_words(*spelling, size, at);
  PyObject* list = PyList_New(0);
  for (const Run& run : unknown) {
    const uint32_t meant = nearest(*spelling, run.word);
    if (meant == spelling->words.size()) continue;
    PyObject* found = Py_BuildValue("(nns)", run.start, run.end, spelling->words[meant].c_str());
    const bool failed = !found || !list || PyList_Append(list, found) != 0;
    Py_XDECREF(found);
    if (failed) {
      Py_XDECREF(list);
      return nullptr;
    }
  }
  return list;
}

}  // namespace aio

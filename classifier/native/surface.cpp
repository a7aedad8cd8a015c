// The surface features of one turn in one pass over its bytes; documented in `classifier.features.surface_features`.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "byte_kinds.h"
#include "options.h"
#include "turn.h"

namespace aio {

struct Surface {
  static constexpr const char* kName = "classifier.surface";
  unsigned char kind_of[256], class_of[256];
  WordTable masks;  // bits of the kinds of words that a word belongs to
  int word_kinds, domains, question_words, connectives;
  std::vector<std::string> code;
  unsigned char code_of[256] = {};  // byte -> bits of the marks of code that begin with it
  // Of each keyword its first letters, and what may follow them, as `KEYWORDS` has it.
  std::vector<std::pair<std::string, std::vector<std::string>>> keywords;
};

namespace {

// Occurrences of all marks of code; those of one mark do not overlap.
int count_code(const Surface& surface, const char* text, size_t size) {
  int found = 0;
  size_t ends[8] = {};
  for (size_t i = 0; i < size; i++)
    for (unsigned bits = surface.code_of[(unsigned char)text[i]]; bits; bits &= bits - 1) {
      const int place = __builtin_ctz(bits);
      const std::string& mark = surface.code[size_t(place)];
      if (i < ends[place] || mark.size() > size - i || memcmp(text + i, mark.data(), mark.size())) continue;
      found++, ends[place] = i + mark.size();
    }
  return found;
}

// Counts of a turn besides its bytes by kind. `classes` are the letters of that module: s, C, 0, . and x.
struct Found {
  int bytes[kKinds] = {};
  int entities = 0, numbers = 0, full_stops = 0, options = 0;
};

Found scan(const Surface& surface, const unsigned char* text, size_t size) {
  Found found;
  const auto cls = [&](size_t i) { return i < size ? surface.class_of[text[i]] : 0; };
  size_t entity_ends = 0;
  for (size_t i = 0; i < size; i++) {
    const unsigned char c = text[i];
    found.bytes[surface.kind_of[c]]++;
    const unsigned char here = surface.class_of[c];
    if (here == '0' && (i == 0 || cls(i - 1) != '0')) found.numbers++;
    if (here == 's') {
      // A capitalised word after a space opens an entity, unless a sentence ends before the space; the capitalised
      // words right after it belong to it.
      if (i >= entity_ends && cls(i + 1) == 'C' && (i == 0 || cls(i - 1) != '.')) {
        found.entities++;
        size_t at = i;
        do
          for (at++; at < size && cls(at) != 's'; at++) {
          }
        while (cls(at) == 's' && cls(at + 1) == 'C');
        entity_ends = at;
      }
      if (i && text[i - 1] == '.' && (c == ' ' || c == '\n')) found.full_stops++;
      if (c == '\n') {
        const size_t letter = i + 1 + (i + 1 < size && text[i + 1] == '(');
        if (letter + 2 < size && text[letter] >= 'A' && text[letter] <= 'J' && text[letter + 2] == ' ' &&
            (text[letter + 1] == '.' || text[letter + 1] == ')' || text[letter + 1] == ':'))
          found.options++;
      }
    }
  }
  return found;
}

bool is_any(const Words& words, std::initializer_list<std::string_view> wanted) {
  return !words.empty() && std::any_of(wanted.begin(), wanted.end(),
                                       [&](std::string_view one) { return hash_of(one) == words.front().hash; });
}

// As Python's regular expressions of texts have them, of ASCII.
bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f); }
bool is_of_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

// Where `rest` of a keyword ends that stands at `at`, or 0: a space in it is white space, a hyphen also hyphens.
size_t end_of(std::string_view text, size_t at, std::string_view rest) {
  for (const char wanted : rest) {
    if (wanted != ' ' && wanted != '-') {
      if (at == text.size() || text[at] != wanted) return 0;
      at++;
      continue;
    }
    const size_t from = at;
    while (at < text.size() && (is_space(text[at]) || (wanted == '-' && text[at] == '-'))) at++;
    if (at == from) return 0;
  }
  return at == text.size() || !is_of_word(text[at]) ? at : 0;
}

// How often a keyword stands in a lower-case text.
int count_keyword(std::string_view text, std::string_view stem, const std::vector<std::string>& rests) {
  int found = 0;
  for (size_t at = text.find(stem); at != text.npos;) {
    size_t end = 0;
    if (at == 0 || !is_of_word(text[at - 1]))
      for (size_t i = 0; !end && i < rests.size(); i++) end = end_of(text, at + stem.size(), rests[i]);
    found += end > 0;
    at = text.find(stem, end ? end : at + 1);
  }
  return found;
}

bool texts_of(PyObject* tuple, std::vector<std::string>& texts) {
  if (!PyTuple_Check(tuple)) return PyErr_Format(PyExc_TypeError, "a tuple of texts is wanted"), false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    const char* text = PyUnicode_AsUTF8(PyTuple_GET_ITEM(tuple, i));
    if (!text) return false;
    texts.emplace_back(text);
  }
  return true;
}

// From a tuple of (first letters, tuple of what may follow); false with a Python error set.
bool read_keywords(Surface& surface, PyObject* given) {
  if (!PyTuple_Check(given)) return PyErr_Format(PyExc_TypeError, "keywords are no tuple"), false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); i++) {
    const char* stem;
    PyObject* rests;
    std::vector<std::string> texts;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(given, i), "sO", &stem, &rests) || !texts_of(rests, texts)) return false;
    surface.keywords.emplace_back(stem, std::move(texts));
  }
  return true;
}

}  // namespace

const Surface* surface_in(PyObject* capsule) { return held<Surface>(capsule); }

// (kinds of bytes, classes of bytes, word -> mask, [word kinds, domains, question words, connectives], marks of code,
//  keywords) -> capsule.
PyObject* make_surface(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 6, "make_surface")) return nullptr;
  Array<unsigned char> kinds(values[0]), classes(values[1]);
  Array<int32_t> numbers(values[3]);
  if (kinds.failed || classes.failed || numbers.failed) return nullptr;
  if (!kinds.has(256, "kinds") || !classes.has(256, "classes") || !numbers.has(4, "numbers")) return nullptr;
  const bool fits = std::all_of(kinds.begin(), kinds.end(), [](unsigned char kind) { return kind < kKinds; });
  if (!fits || !PyDict_Check(values[2]) || !PyTuple_Check(values[4]) || PyTuple_GET_SIZE(values[4]) > 8)
    return PyErr_Format(PyExc_TypeError, "make_surface: tables of bytes, a dict, numbers and up to 8 texts are wanted");
  const int32_t* n = numbers.data();
  if (n[0] < 1 || n[0] > 31 || n[1] < 1 || n[1] > n[0] || n[2] < 0 || n[2] >= n[0] || n[3] < 0 || n[3] >= n[0])
    return PyErr_Format(PyExc_ValueError, "make_surface: up to 31 kinds of words are wanted");
  auto made = std::make_unique<Surface>();
  std::copy(kinds.begin(), kinds.end(), made->kind_of);
  std::copy(classes.begin(), classes.end(), made->class_of);
  made->word_kinds = n[0], made->domains = n[1], made->question_words = n[2], made->connectives = n[3];
  if (!made->masks.fill(values[2]) || !texts_of(values[4], made->code) || !read_keywords(*made, values[5]))
    return nullptr;
  for (size_t i = 0; i < made->code.size(); i++)
    made->code_of[(unsigned char)made->code[i][0]] |= (unsigned char)(1u << i);
  return capsule(made.release());
}

Py_ssize_t feature_count(const Surface& surface) {
  return Py_ssize_t(19 + surface.keywords.size()) + surface.word_kinds + surface.domains + 9 + kOptionFeatures;
}

void put_surface(const Surface& surface, const Options& options, std::string_view text, double chars, double turn_chars,
                 const Words& tokens, float* next) {
  const int domains = surface.domains, kinds = surface.word_kinds;
  chars = std::max(chars, 1.0);
  const double n = double(std::max<size_t>(tokens.size(), 1));
  int words[64] = {}, ordered[64];
  for (const Word& word : tokens)
    for (unsigned bits = unsigned(surface.masks.find(word.hash, 0)); bits; bits &= bits - 1) words[__builtin_ctz(bits)]++;
  const size_t size = text.size();
  const auto* utf8 = reinterpret_cast<const unsigned char*>(text.data());
  const Found has = scan(surface, utf8, size);
  const int* bytes = has.bytes;
  const int code = count_code(surface, text.data(), size);
  std::copy_n(words, domains, ordered);
  std::partial_sort(ordered, ordered + std::min(2, domains), ordered + domains, std::greater<int>());

  const auto put = [&](double value) { *next++ = float(value); };
  put(std::log1p(turn_chars));
  put(std::log1p(n * turn_chars / chars));
  put(double(int64_t(size) - bytes[kLineBreak] - bytes[kOtherSpace]) / n);
  put(double(distinct(tokens)) / n);
  put(std::log1p(bytes[kQuestion] + bytes[kExclamation] + has.full_stops));
  put(std::log1p(bytes[kLineBreak]));
  put(std::log1p(bytes[kQuestion]));
  put(std::log1p(double(words[surface.question_words] + words[surface.connectives]) / std::max(bytes[kQuestion], 1)));
  put(is_any(tokens, {"what", "which", "who", "when", "where"}));
  put(is_any(tokens, {"how"})), put(is_any(tokens, {"why"}));
  put(std::log1p(has.entities)), put(has.entities / n);
  put(std::log1p(has.numbers)), put(has.numbers / n);
  put(std::log1p(has.options));
  put(memmem(text.data(), size, "__", 2) != nullptr);
  put(std::log1p(code));
  put(std::log1p(bytes[kBackslash] + bytes[kDollar]));
  next += surface.keywords.size();
  for (int kind = 0; kind < kinds; kind++) put(words[kind] / n);
  for (int domain = 0; domain < domains; domain++) put(words[domain] ? 1.0 : 0.0);
  put((bytes[kOtherMaths] + bytes[kDollar]) / chars);
  for (Kind kind : {kBracket, kDigit, kQuote, kBackslash, kComma, kCapital, kNonAscii}) put(bytes[kind] / chars);
  put((ordered[0] - ordered[1]) / n);
  put_option_features(options, utf8, size, next);
}

void put_keywords(const Surface& surface, std::string_view lower, float* features) {
  for (size_t i = 0; i < surface.keywords.size(); i++)
    features[19 + i] = float(count_keyword(lower, surface.keywords[i].first, surface.keywords[i].second));
}

// (surface, options, turn as UTF-8, its characters, tokens, characters before the cut, features to write) -> None. The
// counts of keywords are left as they are.
PyObject* surface_features(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 7, "surface_features")) return nullptr;
  const Surface* surface = held<Surface>(values[0]);
  const Options* options = surface ? held<Options>(values[1]) : nullptr;
  if (!options) return nullptr;
  Array<char> text(values[2]);
  Array<float> out(values[6], true);
  if (text.failed || out.failed || !out.has(feature_count(*surface), "features")) return nullptr;
  const double chars = PyFloat_AsDouble(values[3]), turn_chars = PyFloat_AsDouble(values[5]);
  Words words;
  if (PyErr_Occurred() || !words_of(values[4], words)) return nullptr;
  put_surface(*surface, *options, {text.data(), size_t(text.size())}, chars, turn_chars, words, out.data());
  Py_RETURN_NONE;
}

}  // namespace aio

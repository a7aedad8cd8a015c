// The surface features of one turn in one pass over its bytes; documented in `classifier.features.surface_features`.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "byte_kinds.h"
#include "options.h"
#include "python_data.h"

namespace aio {
namespace {

struct Surface {
  static constexpr const char* kName = "classifier.surface";
  unsigned char kind_of[256], class_of[256];
  PyObject* masks;  // word -> bits of the kinds of words that it belongs to
  int word_kinds, domains, question_words, connectives, keywords;
  std::vector<std::string> code;
  unsigned char code_of[256] = {};  // byte -> bits of the marks of code that begin with it

  ~Surface() { Py_XDECREF(masks); }
};

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

// How many of the tokens belong to each kind of words; false with a Python error set.
bool count_words(const Surface& surface, PyObject* tokens, std::vector<int>& counts) {
  PyObject** items = PySequence_Fast_ITEMS(tokens);
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(tokens); i++) {
    PyObject* mask = PyDict_GetItemWithError(surface.masks, items[i]);
    if (!mask && PyErr_Occurred()) return false;
    for (unsigned long bits = mask ? PyLong_AsUnsignedLong(mask) : 0; bits; bits &= bits - 1)
      counts[__builtin_ctzl(bits)]++;
  }
  return true;
}

// How many of the tokens, all of them texts, are different; collisions of hashes within one turn are negligible.
size_t distinct(PyObject* tokens) {
  std::vector<Py_hash_t> hashes(size_t(PySequence_Fast_GET_SIZE(tokens)));
  for (size_t i = 0; i < hashes.size(); i++) hashes[i] = PyObject_Hash(PySequence_Fast_GET_ITEM(tokens, Py_ssize_t(i)));
  std::sort(hashes.begin(), hashes.end());
  return size_t(std::unique(hashes.begin(), hashes.end()) - hashes.begin());
}

bool is_any(PyObject* word, std::initializer_list<const char*> words) {
  return word && std::any_of(words.begin(), words.end(),
                             [&](const char* one) { return PyUnicode_CompareWithASCIIString(word, one) == 0; });
}

}  // namespace

// (kinds of bytes, classes of bytes, word -> mask, [word kinds, domains, question words, connectives, keywords],
//  marks of code) -> capsule.
PyObject* make_surface(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 5, "make_surface")) return nullptr;
  Array<unsigned char> kinds(values[0]), classes(values[1]);
  Array<int32_t> numbers(values[3]);
  if (kinds.failed || classes.failed || numbers.failed) return nullptr;
  if (!kinds.has(256, "kinds") || !classes.has(256, "classes") || !numbers.has(5, "numbers")) return nullptr;
  const bool fits = std::all_of(kinds.begin(), kinds.end(), [](unsigned char kind) { return kind < kKinds; });
  if (!fits || !PyDict_Check(values[2]) || !PyTuple_Check(values[4]) || PyTuple_GET_SIZE(values[4]) > 8)
    return PyErr_Format(PyExc_TypeError, "make_surface: tables of bytes, a dict, numbers and up to 8 texts are wanted");
  auto* made = new Surface{{}, {}, Py_NewRef(values[2]), 0, 0, 0, 0, 0, {}};
  std::copy(kinds.begin(), kinds.end(), made->kind_of);
  std::copy(classes.begin(), classes.end(), made->class_of);
  const int32_t* n = numbers.data();
  made->word_kinds = n[0], made->domains = n[1], made->question_words = n[2], made->connectives = n[3];
  made->keywords = n[4];
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values[4]); i++) {
    const char* mark = PyUnicode_AsUTF8(PyTuple_GET_ITEM(values[4], i));
    if (!mark) {
      delete made;
      return nullptr;
    }
    made->code.emplace_back(mark);
    made->code_of[(unsigned char)*mark] |= (unsigned char)(1u << i);
  }
  return capsule(made);
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
  if (text.failed || out.failed) return nullptr;
  const int domains = surface->domains, kinds = surface->word_kinds;
  if (!out.has(19 + surface->keywords + kinds + domains + 9 + kOptionFeatures, "features")) return nullptr;
  const double chars = std::max(PyFloat_AsDouble(values[3]), 1.0), turn_chars = PyFloat_AsDouble(values[5]);
  if (PyErr_Occurred()) return nullptr;
  PyObject* tokens = PySequence_Fast(values[4], "tokens are no sequence");
  if (!tokens) return nullptr;
  const double n = double(std::max<Py_ssize_t>(PySequence_Fast_GET_SIZE(tokens), 1));
  PyObject* first = PySequence_Fast_GET_SIZE(tokens) ? PySequence_Fast_GET_ITEM(tokens, 0) : nullptr;
  std::vector<int> words(std::max(kinds, 64));
  const bool counted = count_words(*surface, tokens, words);
  const double different = counted ? double(distinct(tokens)) : 0.0;
  const double is_what = is_any(first, {"what", "which", "who", "when", "where"});
  const double is_how = is_any(first, {"how"}), is_why = is_any(first, {"why"});
  Py_DECREF(tokens);
  if (!counted) return nullptr;

  const size_t size = size_t(text.size());
  const auto* utf8 = reinterpret_cast<const unsigned char*>(text.data());
  const Found has = scan(*surface, utf8, size);
  const int* bytes = has.bytes;
  const int code = count_code(*surface, text.data(), size);
  std::vector<int> ordered(words.begin(), words.begin() + domains);
  std::partial_sort(ordered.begin(), ordered.begin() + std::min(2, domains), ordered.end(), std::greater<int>());

  float* next = out.data();
  const auto put = [&](double value) { *next++ = float(value); };
  put(std::log1p(turn_chars));
  put(std::log1p(n * turn_chars / chars));
  put(double(int64_t(size) - bytes[kLineBreak] - bytes[kOtherSpace]) / n);
  put(different / n);
  put(std::log1p(bytes[kQuestion] + bytes[kExclamation] + has.full_stops));
  put(std::log1p(bytes[kLineBreak]));
  put(std::log1p(bytes[kQuestion]));
  put(std::log1p(double(words[surface->question_words] + words[surface->connectives]) /
                 std::max(bytes[kQuestion], 1)));
  put(is_what), put(is_how), put(is_why);
  put(std::log1p(has.entities)), put(has.entities / n);
  put(std::log1p(has.numbers)), put(has.numbers / n);
  put(std::log1p(has.options));
  put(memmem(text.data(), size, "__", 2) != nullptr);
  put(std::log1p(code));
  put(std::log1p(bytes[kBackslash] + bytes[kDollar]));
  next += surface->keywords;
  for (int kind = 0; kind < kinds; kind++) put(words[kind] / n);
  for (int domain = 0; domain < domains; domain++) put(words[domain] ? 1.0 : 0.0);
  put((bytes[kOtherMaths] + bytes[kDollar]) / chars);
  for (Kind kind : {kBracket, kDigit, kQuote, kBackslash, kComma, kCapital, kNonAscii}) put(bytes[kind] / chars);
  put((ordered[0] - ordered[1]) / n);
  put_option_features(*options, utf8, size, next);
  Py_RETURN_NONE;
}

}  // namespace aio

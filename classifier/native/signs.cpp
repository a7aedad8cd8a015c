// Whether any rule on the words of a turn can change it: most turns need no rule. `classifier.features.routing_input`.
#include <algorithm>
#include <bitset>
#include <cstring>
#include <memory>

#include "spelling.h"
#include "words.h"

namespace aio {
namespace {

// As in `classifier.features.routing_input`: what stands around the request or speaks to the router; white space,
// length and spelling; polite words.
enum Sign { kRules = 1, kForm = 2, kPolite = 4 };
// As `cut_turn` and `classifier.features.plain_form`.
constexpr size_t kUncutWords = 192, kUncut = 8 * kUncutWords, kGreeting = 12, kWindow = 200;

// Texts of two characters or more that are looked for together.
struct Needles {
  std::vector<std::string> by_first[128];
  std::bitset<1 << 15> begin;  // their first three characters; of shorter ones with each third character

  static size_t place(const char* text) {
    return size_t(text[0] & 31) << 10 | size_t(text[1] & 31) << 5 | size_t(text[2] & 31);
  }
  void add(std::string text) {
    std::string first = text;
    for (int third = 0; third < 32; third++) {
      if (text.size() < 3) first = text + char(third);
      begin[place(first.data())] = true;
    }
    by_first[size_t(text[0])].push_back(std::move(text));
  }
  // Whether one stands in `text`, after whose end a character more can be read.
  bool any_in(std::string_view text) const {
    for (size_t at = 0; at + 1 < text.size(); at++) {
      if (!begin[place(text.data() + at)]) continue;
      for (const std::string& one : by_first[size_t(text[at])])
        if (one.size() <= text.size() - at && !std::memcmp(one.data(), text.data() + at, one.size())) return true;
    }
    return false;
  }
};

struct Signs {
  static constexpr const char* kName = "classifier.signs";
  Needles marks, thanks;
  WordTable greetings, courtesy, leads;
  PyObject* spelling_capsule;
  const Spelling* spelling;

  ~Signs() { Py_XDECREF(spelling_capsule); }
};

bool has(const WordTable& table, std::string_view word) { return table.find(hash_of(word), -1) >= 0; }
// Stands for a letter beyond ASCII, with which no word of a table is written.
constexpr char kForeign = 0x7f;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || c == kForeign; }
bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f); }

bool is_greeting(const Signs& signs, std::string_view lower) {
  std::string_view first = lower.substr(0, kGreeting);
  first = first.substr(0, size_t(std::find_if(first.begin(), first.end(), is_space) - first.begin()));
  const size_t from = first.find_first_not_of(",.!?:;"), last = first.find_last_not_of(",.!?:;");
  return from != first.npos && has(signs.greetings, first.substr(from, last + 1 - from));
}

// Whether each word is of courtesy, of which there is one.
bool is_courteous(const Signs& signs, std::string_view lower) {
  bool any = false;
  for (size_t i = 0; i < lower.size(); i++) {
    if (!is_letter(lower[i])) continue;
    const size_t from = i;
    while (i < lower.size() && is_letter(lower[i])) i++;
    if (!has(signs.courtesy, lower.substr(from, i - from))) return false;
    any = true;
  }
  return any;
}

bool begins_politely(const Signs& signs, std::string_view lower) {
  const std::string_view window = lower.substr(0, kWindow);
  const auto from = std::find_if(window.begin(), window.end(), is_letter);
  const auto end = std::find_if_not(from, window.end(), is_letter);
  if (has(signs.leads, window.substr(size_t(from - window.begin()), size_t(end - from)))) return true;
  const size_t mark = window.find_first_of(".!?:,");
  return mark != window.npos && is_courteous(signs, window.substr(0, mark));
}

bool ends_politely(const Signs& signs, std::string_view lower) {
  const std::string_view window = lower.substr(lower.size() - std::min(lower.size(), kWindow));
  if (signs.thanks.any_in(window)) return true;
  const size_t mark = window.substr(0, window.size() - 1).find_last_of(".!?");
  return mark != window.npos && is_courteous(signs, window.substr(mark + 1));
}

using Letters = std::u32string_view;

bool is_white(char32_t c) { return Py_UNICODE_ISSPACE(Py_UCS4(c)); }

// The characters of the head of an option of a question that begins at `at`, "A. " or "(b) ", 0 without one.
size_t option_at(Letters text, size_t at) {
  const size_t bracket = at < text.size() && text[at] == '(';
  const Letters head = text.substr(std::min(at + bracket, text.size()), 3);
  if (head.size() < 3 || (head[0] | 32) < 'a' || (head[0] | 32) > 'j' || head[2] != ' ') return 0;
  return head[1] == '.' || head[1] == ')' || head[1] == ':' ? bracket + 3 : 0;
}

// The text with one space between words, and a line break only before an option of a question.
std::u32string single_spaced(Letters text) {
  std::u32string found;
  found.reserve(text.size());
  bool starts = true;  // a line, which begins with no space
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    bool breaks = false;
    for (; end < text.size() && is_white(text[end]); end++) breaks |= text[end] == '\n';
    const size_t option = breaks ? option_at(text, end) : 0;
    if (option) found += '\n';
    else if (end > at && end < text.size() && !starts) found += ' ';
    starts &= end > at;
    at = end;
    if (option) {
      for (; at + 1 < end + option; at++) found += text[at] >= 'a' && text[at] <= 'j' ? text[at] - 32 : text[at];
      starts = false;
    } else if (at < text.size()) {
      found += text[at++];
      starts = false;
    }
  }
  return found;
}

// Whether polite words may stand at an end of a text.
bool may_be_polite(const Signs& signs, Letters text) {
  std::string lower(text.size() + 1, ' ');
  for (size_t i = 0; i < text.size(); i++) {
    const auto c = Py_UCS4(text[i]);
    // Where case is ignored these are letters of ASCII.
    if (c == 0x130 || c == 0x131 || c == 0x17f || c == 0x212a) return true;
    if (c < 128) lower[i] = c == kForeign ? ' ' : char(c | (c >= 'A' && c <= 'Z' ? 32 : 0));
    else if (Py_UNICODE_ISALNUM(c) && !Py_UNICODE_ISDECIMAL(c)) lower[i] = kForeign;
  }
  const std::string_view view{lower.data(), text.size()};
  return begins_politely(signs, view) || ends_politely(signs, view);
}

template <typename Add>
bool each_text(PyObject* tuple, Add add) {
  if (!PyTuple_Check(tuple)) return PyErr_Format(PyExc_TypeError, "make_signs takes tuples of texts"), false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    PyObject* text = PyTuple_GET_ITEM(tuple, i);
    if (!PyUnicode_Check(text) || !PyUnicode_IS_ASCII(text) || PyUnicode_GET_LENGTH(text) < 2)
      return PyErr_Format(PyExc_TypeError, "make_signs takes ASCII texts of two characters or more"), false;
    add(std::string(static_cast<const char*>(PyUnicode_DATA(text)), size_t(PyUnicode_GET_LENGTH(text))));
  }
  return true;
}

}  // namespace

// (tuple of marks of a rule, of marks of thanks, dicts of greetings, of words of courtesy, of first words of what leads
//  in to a request, spelling) -> capsule.
PyObject* make_signs(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 6, "make_signs")) return nullptr;
  auto made = std::make_unique<Signs>();
  made->spelling = spelling_in(values[5]);
  if (!made->spelling) return nullptr;
  made->spelling_capsule = Py_NewRef(values[5]);
  if (!each_text(values[0], [&](std::string text) { made->marks.add(std::move(text)); }) ||
      !each_text(values[1], [&](std::string text) { made->thanks.add(std::move(text)); }))
    return nullptr;
  if (!PyDict_Check(values[2]) || !PyDict_Check(values[3]) || !PyDict_Check(values[4]))
    return PyErr_Format(PyExc_TypeError, "make_signs takes dicts of words");
  if (!made->greetings.fill(values[2]) || !made->courtesy.fill(values[3]) || !made->leads.fill(values[4])) return nullptr;
  return capsule(made.release());
}

// (signs, a turn without white space at its ends) -> which rules may change it, as bits of `Sign`; 0 for none.
PyObject* signs_of(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 2, "signs_of")) return nullptr;
  const Signs* signs = held<Signs>(values[0]);
  if (!signs) return nullptr;
  if (!PyUnicode_Check(values[1])) return PyErr_Format(PyExc_TypeError, "signs_of takes a text");
  const auto size = size_t(PyUnicode_GET_LENGTH(values[1]));
  if (!PyUnicode_IS_ASCII(values[1]) || !size || size > kUncut) return PyLong_FromLong(kRules);
  std::string spaced = lowered(static_cast<const char*>(PyUnicode_DATA(values[1])), size);
  spaced += ' ';
  const std::string_view lower{spaced.data(), size};
  // Comparisons without branches are made at once for many bytes.
  unsigned spaces = 0;
  unsigned char symbols = lower.back() == '>', uneven = 0;
  for (size_t i = 0; i < size; i++) {
    const char c = spaced[i];
    symbols |= (c == '=') | (c == '{') | (c == '$') | (c == '\\') | (c == '_') | (c == '<') | (c == '[');
    uneven |= (c < ' ') | (c == 0x7f) | ((c == ' ') & (spaced[i + 1] == ' '));
    spaces += c == ' ';
  }
  if (symbols || is_greeting(*signs, lower) || signs->marks.any_in(spaced)) return PyLong_FromLong(kRules);
  if (uneven || spaces >= kUncutWords || is_misspelt(*signs->spelling, lower)) return PyLong_FromLong(kForm);
  return PyLong_FromLong(begins_politely(*signs, lower) || ends_politely(*signs, lower) ? kPolite : 0);
}

// (signs, a text) -> it in plain form but for polite words, and whether it may have these; None for one with a null
// character, by which the reference parts its lines.
PyObject* plain_words(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 2, "plain_words")) return nullptr;
  const Signs* signs = held<Signs>(values[0]);
  if (!signs) return nullptr;
  if (!PyUnicode_Check(values[1])) return PyErr_Format(PyExc_TypeError, "plain_words takes a text");
  const int kind = PyUnicode_KIND(values[1]);
  const void* data = PyUnicode_DATA(values[1]);
  std::u32string text(size_t(PyUnicode_GET_LENGTH(values[1])), 0);
  for (size_t i = 0; i < text.size(); i++) text[i] = PyUnicode_READ(kind, data, Py_ssize_t(i));
  if (text.find(U'\0') != text.npos) Py_RETURN_NONE;
  text = single_spaced(text);
  correct(*signs->spelling, text);
  PyObject* plain = PyUnicode_FromKindAndData(PyUnicode_4BYTE_KIND, text.data(), Py_ssize_t(text.size()));
  return plain ? Py_BuildValue("(NO)", plain, may_be_polite(*signs, text) ? Py_True : Py_False) : nullptr;
}

}  // namespace aio

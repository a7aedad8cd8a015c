// How deep and how large JSON is, in one pass over its bytes; `gateway.inference.api.json_bounds` is the reference.
#include <algorithm>
#include <cstring>

#include "python_data.h"

namespace aio {
namespace {

// In the order of `_EXCESSES` of that module.
enum Excess { kNone, kDepth, kContainers, kFields, kNumbers };
// Digits of a number that counts as long.
constexpr int64_t kLong = 16;
// Bytes of a string that are looked at one by one.
constexpr int kNear = 16;

struct Bounds {
  int64_t depth, containers, fields, exponents, long_digits;
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Walks over JSON; what it looks for far ahead it looks for once.
struct Walk {
  const char *at, *end;
  const char *quote = at - 1, *backslash = at - 1;  // the next ones, where they are not before `at`

  const char* next(char wanted) const {
    const void* found = std::memchr(at, wanted, size_t(end - at));
    return found ? static_cast<const char*>(found) : end;
  }
  bool is_exponent() const { return at < end && (*at | 0x20) == 'e'; }

  // From within a string to behind its closing quote, or to the end.
  void leave_string() {
    for (const char* from = at; at < end;) {
      if (*at == '"') {
        ++at;
        return;
      }
      if (*at == '\\') {
        at = from = std::min(at + 2, end);
      } else if (++at - from == kNear) {
        if (quote < at) quote = next('"');
        if (backslash < at) backslash = next('\\');
        at = from = std::min(quote, backslash);
      }
    }
  }
  // From behind the first digit to behind the last one; how many there are.
  int64_t leave_digits() {
    const char* from = at - 1;
    while (at < end && is_digit(*at)) ++at;
    return at - from;
  }
};

Excess excess_of(const char* text, const char* end, const Bounds& most) {
  Bounds has{};
  for (Walk walk{text, end}; walk.at < end;) {
    const char c = *walk.at++;
    if (c == '"') {
      walk.leave_string();
    } else if (is_digit(c)) {
      has.long_digits += std::max<int64_t>(walk.leave_digits() - kLong + 1, 0);
      has.exponents += walk.is_exponent();
    } else if (c == '.') {
      has.exponents += walk.is_exponent();
    } else if (c == '{' || c == '[') {
      if (++has.depth > most.depth) return kDepth;
      if (++has.containers > most.containers) return kContainers;
    } else if (c == '}' || c == ']') {
      --has.depth;
    } else if (c == ':') {
      ++has.fields;
    }
  }
  if (has.fields > most.fields) return kFields;
  return has.exponents > most.exponents || has.long_digits > most.long_digits ? kNumbers : kNone;
}

}  // namespace

// (bytes, and at most how many levels, containers, fields, numbers with exponents and digits of long ones) -> what is too
// many, as a number of `Excess`.
PyObject* json_excess(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 6, "json_excess")) return nullptr;
  Array<char> text(values[0]);
  if (text.failed) return nullptr;
  int64_t most[5];
  for (int i = 0; i < 5; i++) most[i] = PyLong_AsLongLong(values[i + 1]);
  if (PyErr_Occurred()) return nullptr;
  Excess found;
  Py_BEGIN_ALLOW_THREADS
  found = excess_of(text.begin(), text.end(), {most[0], most[1], most[2], most[3], most[4]});
  Py_END_ALLOW_THREADS
  return PyLong_FromLong(found);
}

}  // namespace aio

// Which of a few short texts occur in a longer one, in one pass over it; `classifier.features.stray_text` is the reference.
#include <algorithm>
#include <bitset>

#include "python_data.h"

namespace aio {
namespace {

struct Marks {
  static constexpr const char* kName = "classifier.marks";
  PyObject* marks;             // a tuple of at most 64 ASCII texts, of two characters or more
  std::bitset<1 << 16> begin;  // the first two characters of each
  uint8_t by_first[64];        // their places, sorted by the first character
  uint8_t from[129];           // for each first character, where its places begin

  ~Marks() { Py_XDECREF(marks); }
};

const char* ascii(PyObject* text) { return static_cast<const char*>(PyUnicode_DATA(text)); }
size_t pair_at(const char* text) {
  return size_t(static_cast<unsigned char>(text[0])) << 8 | static_cast<unsigned char>(text[1]);
}
bool is_ascii(PyObject* text) { return PyUnicode_Check(text) && PyUnicode_IS_ASCII(text); }

}  // namespace

// (tuple of marks) -> capsule.
PyObject* make_marks(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 1, "make_marks")) return nullptr;
  bool fits = PyTuple_Check(values[0]) && PyTuple_GET_SIZE(values[0]) <= 64;
  for (Py_ssize_t i = 0; fits && i < PyTuple_GET_SIZE(values[0]); i++) {
    PyObject* mark = PyTuple_GET_ITEM(values[0], i);
    fits = is_ascii(mark) && PyUnicode_GET_LENGTH(mark) >= 2;
  }
  if (!fits) return PyErr_Format(PyExc_TypeError, "make_marks takes up to 64 ASCII texts of two characters or more");
  auto* made = new Marks{Py_NewRef(values[0]), {}, {}, {}};
  const Py_ssize_t wanted = PyTuple_GET_SIZE(made->marks);
  uint8_t next = 0;
  for (int first = 0; first < 128; first++) {
    made->from[first] = next;
    for (Py_ssize_t i = 0; i < wanted; i++) {
      const char* mark = ascii(PyTuple_GET_ITEM(made->marks, i));
      if (mark[0] != first) continue;
      made->begin[pair_at(mark)] = true;
      made->by_first[next++] = uint8_t(i);
    }
  }
  made->from[128] = next;
  return capsule(made);
}

namespace {

// The places of the marks in a text of characters of so many bytes, as bits.
template <typename Character>
uint64_t found_in(const Marks& marks, const Character* text, Py_ssize_t size) {
  uint64_t found = 0;
  for (Py_ssize_t at = 0; at + 1 < size; at++) {
    if (text[at] >= 128 || text[at + 1] >= 128 || !marks.begin[size_t(text[at]) << 8 | size_t(text[at + 1])]) continue;
    for (int i = marks.from[text[at]]; i < marks.from[text[at] + 1]; i++) {
      PyObject* mark = PyTuple_GET_ITEM(marks.marks, marks.by_first[i]);
      const Py_ssize_t length = PyUnicode_GET_LENGTH(mark);
      const auto* letters = reinterpret_cast<const unsigned char*>(ascii(mark));
      if (length <= size - at && std::equal(letters, letters + length, text + at))
        found |= uint64_t(1) << marks.by_first[i];
    }
  }
  return found;
}

}  // namespace

// (marks, text) -> list of the marks that occur in it, in their own order.
PyObject* marks_in(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 2, "marks_in")) return nullptr;
  const Marks* marks = held<Marks>(values[0]);
  if (!marks) return nullptr;
  if (!PyUnicode_Check(values[1])) return PyErr_Format(PyExc_TypeError, "marks_in takes a text");
  const Py_ssize_t size = PyUnicode_GET_LENGTH(values[1]);
  uint64_t found = 0;
  switch (PyUnicode_KIND(values[1])) {
    case PyUnicode_1BYTE_KIND: found = found_in(*marks, PyUnicode_1BYTE_DATA(values[1]), size); break;
    case PyUnicode_2BYTE_KIND: found = found_in(*marks, PyUnicode_2BYTE_DATA(values[1]), size); break;
    default: found = found_in(*marks, PyUnicode_4BYTE_DATA(values[1]), size);
  }
  PyObject* list = PyList_New(0);
  for (; list && found; found &= found - 1)
    if (PyList_Append(list, PyTuple_GET_ITEM(marks->marks, __builtin_ctzll(found))) != 0) Py_CLEAR(list);
  return list;
}

}  // namespace aio

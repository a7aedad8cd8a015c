// Data passed from Python: arrays by the buffer protocol, and the kernels' own data in capsules.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <new>

// Compiled once per instruction set and chosen when the module is loaded, where the toolchain can. A level names every
// processor that has its instructions; the name of a processor would name that one alone.
#if defined(__x86_64__) && defined(__GLIBC__) && __GNUC__ >= 12 && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define AIO_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define AIO_CLONES
#endif

namespace aio {

// A contiguous array of T for the length of a call. `failed` leaves a Python error set.
template <typename T>
struct Array {
  Py_buffer view{};
  bool failed;

  explicit Array(PyObject* object, bool writable = false) {
    failed = PyObject_GetBuffer(object, &view, PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0)) != 0;
    if (!failed && view.itemsize != Py_ssize_t(sizeof(T))) {
      PyErr_Format(PyExc_TypeError, "an array has items of %zd bytes; %zu are wanted", view.itemsize, sizeof(T));
      failed = true;
    }
  }
  ~Array() {
    if (view.obj) PyBuffer_Release(&view);
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* data() const { return static_cast<T*>(view.buf); }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size(); }
  Py_ssize_t size() const { return view.len / Py_ssize_t(sizeof(T)); }
  // Whether there are `wanted` items; a Python error otherwise.
  bool has(Py_ssize_t wanted, const char* name) const {
    if (size() == wanted) return true;
    PyErr_Format(PyExc_ValueError, "%s has %zd numbers; %zd are wanted", name, size(), wanted);
    return false;
  }
};

template <typename T>
PyObject* capsule(T* owned) {
  PyObject* made = PyCapsule_New(owned, T::kName, [](PyObject* self) {
    delete static_cast<T*>(PyCapsule_GetPointer(self, T::kName));
  });
  if (!made) delete owned;
  return made;
}

template <typename T>
T* held(PyObject* object) {
  return static_cast<T*>(PyCapsule_GetPointer(object, T::kName));
}

inline bool expect(Py_ssize_t given, Py_ssize_t wanted, const char* name) {
  if (given == wanted) return true;
  PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, %zd given", name, wanted, given);
  return false;
}

using Values = PyObject* const*;
PyObject* make_encoder(PyObject*, Values, Py_ssize_t);
PyObject* read_encoder(PyObject*, Values, Py_ssize_t);
PyObject* encode(PyObject*, Values, Py_ssize_t);
PyObject* make_surface(PyObject*, Values, Py_ssize_t);
PyObject* surface_features(PyObject*, Values, Py_ssize_t);
PyObject* make_options(PyObject*, Values, Py_ssize_t);
PyObject* make_marks(PyObject*, Values, Py_ssize_t);
PyObject* marks_in(PyObject*, Values, Py_ssize_t);
PyObject* make_spelling(PyObject*, Values, Py_ssize_t);
PyObject* corrections(PyObject*, Values, Py_ssize_t);
PyObject* make_signs(PyObject*, Values, Py_ssize_t);
PyObject* signs_of(PyObject*, Values, Py_ssize_t);
PyObject* plain_words(PyObject*, Values, Py_ssize_t);
PyObject* make_material(PyObject*, Values, Py_ssize_t);
PyObject* has_no_material(PyObject*, Values, Py_ssize_t);
PyObject* read_turn(PyObject*, Values, Py_ssize_t);
PyObject* make_trees(PyObject*, Values, Py_ssize_t);
PyObject* make_complexity(PyObject*, Values, Py_ssize_t);
PyObject* class_probabilities(PyObject*, Values, Py_ssize_t);
PyObject* make_transformer(PyObject*, Values, Py_ssize_t);
PyObject* pool_tokens(PyObject*, Values, Py_ssize_t);
PyObject* json_excess(PyObject*, Values, Py_ssize_t);

}  // namespace aio

// Reading the arguments of METH_FASTCALL functions, and running work without the interpreter's lock.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <exception>
#include <new>
#include <string>

namespace aio {

struct Arguments {
  PyObject* const* values;
  bool failed = false;

  int64_t integer(int i) {
    const long long v = PyLong_AsLongLong(values[i]);
    if (v == -1 && PyErr_Occurred()) failed = true;
    return v;
  }
  float real(int i) {
    const double v = PyFloat_AsDouble(values[i]);
    if (v == -1.0 && PyErr_Occurred()) failed = true;
    return float(v);
  }
  template <typename T>
  T* address(int i) { return reinterpret_cast<T*>(integer(i)); }
};

inline bool expect(Py_ssize_t given, Py_ssize_t wanted, const char* name) {
  if (given == wanted) return true;
  PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, %zd given", name, wanted, given);
  return false;
}

// None, or null with RuntimeError set if `work` threw.
template <typename Work>
PyObject* without_gil(const Work& work) {
  std::string error;
  bool out_of_memory = false;
  Py_BEGIN_ALLOW_THREADS
  try {
    work();
  } catch (const std::bad_alloc&) {
    out_of_memory = true;
  } catch (const std::exception& e) {
    error = e.what();
  }
  Py_END_ALLOW_THREADS
  if (out_of_memory) return PyErr_NoMemory();
  if (!error.empty()) {
    PyErr_SetString(PyExc_RuntimeError, error.c_str());
    return nullptr;
  }
  Py_RETURN_NONE;
}

}  // namespace aio

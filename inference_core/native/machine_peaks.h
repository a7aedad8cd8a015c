// Entry points that measure the machine itself.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace aio {

PyObject* multiply(PyObject*, PyObject* const* values, Py_ssize_t count);
PyObject* read_memory(PyObject*, PyObject* const* values, Py_ssize_t count);
PyObject* meet(PyObject*, PyObject* const* values, Py_ssize_t count);

}  // namespace aio

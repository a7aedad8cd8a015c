// Entry points of single kernels.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace aio {

PyObject* linear(PyObject*, PyObject* const* values, Py_ssize_t count);
PyObject* rms_norm(PyObject*, PyObject* const* values, Py_ssize_t count);
PyObject* gated_mul(PyObject*, PyObject* const* values, Py_ssize_t count);
PyObject* cap_values(PyObject*, PyObject* const* values, Py_ssize_t count);
PyObject* quantize(PyObject*, PyObject* const* values, Py_ssize_t count);
PyObject* norm_quantize(PyObject*, PyObject* const* values, Py_ssize_t count);
PyObject* silu_quantize(PyObject*, PyObject* const* values, Py_ssize_t count);
PyObject* rope_and_write(PyObject*, PyObject* const* values, Py_ssize_t count);
PyObject* attend(PyObject*, PyObject* const* values, Py_ssize_t count);

}  // namespace aio

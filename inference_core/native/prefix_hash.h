// Names of KV blocks: a chain of BLAKE2b digests over token ids.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace aio {

PyObject* chain_digests(PyObject*, PyObject* const* values, Py_ssize_t count);

}  // namespace aio

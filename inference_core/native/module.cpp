// The Python module of the native code: its table of functions, and the settings that they share.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string>

#include "decoder_python.h"
#include "machine_peaks.h"
#include "operations.h"
#include "prefix_hash.h"
#include "python_args.h"
#include "runtime.h"
#include "sampling.h"

namespace aio {
namespace {

// set_threads(threads, adapts = false)
PyObject* set_threads(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (count != 1 && !expect(count, 2, "set_threads")) return nullptr;
  Arguments v{values};
  const int64_t n = v.integer(0);
  const bool adapts = count == 2 && v.integer(1) != 0;
  if (v.failed) return nullptr;
  if (n < 1 || n > 1024) {
    PyErr_Format(PyExc_ValueError, "threads must be between 1 and 1024, not %lld", (long long)n);
    return nullptr;
  }
  return without_gil([&] {
    std::lock_guard<std::mutex> lock(runtime().mutex);
    runtime().set_threads(int(n), adapts);
  });
}

// Without the lock, which a step holds for its whole time.
PyObject* threads_in_use(PyObject*, PyObject*) {
  return PyLong_FromLong(runtime().threads_in_use.load(std::memory_order_relaxed));
}

// choose_threads(most, [(seconds, lost), ...])
PyObject* choose_threads(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 2, "choose_threads")) return nullptr;
  Arguments v{values};
  ThreadChoice choice(int(v.integer(0)));
  PyObject* steps = v.failed ? nullptr : PySequence_Fast(values[1], "steps must be a list");
  if (!steps) return nullptr;
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(steps);
  PyObject* chosen = PyList_New(size);
  for (Py_ssize_t i = 0; chosen && i < size; ++i) {
    double seconds, lost;
    if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(steps, i), "dd", &seconds, &lost)) {
      Py_CLEAR(chosen);
      break;
    }
    choice.observe(seconds, lost);
    PyList_SET_ITEM(chosen, i, PyLong_FromLong(choice.threads()));
  }
  Py_DECREF(steps);
  return chosen;
}

PyObject* instruction_sets(PyObject*, PyObject*) {
  PyObject* names = PyList_New(0);
  for (const KernelTable* table : available_kernels()) {
    PyObject* name = PyUnicode_FromString(table->name);
    PyList_Append(names, name);
    Py_DECREF(name);
  }
  return names;
}

PyObject* use_instruction_set(PyObject*, PyObject* arg) {
  const char* wanted = PyUnicode_AsUTF8(arg);
  if (!wanted) return nullptr;
  std::vector<const KernelTable*> tables = available_kernels();
  tables.push_back(emulated_kernels());
  for (const KernelTable* table : tables)
    if (std::string(table->name) == wanted) {
      std::lock_guard<std::mutex> lock(runtime().mutex);
      runtime().kernels = table;
      Py_RETURN_NONE;
    }
  PyErr_Format(PyExc_ValueError, "this processor has no '%s' kernels", wanted);
  return nullptr;
}

PyObject* instruction_set(PyObject*, PyObject*) { return PyUnicode_FromString(runtime().kernels->name); }

PyObject* prompt_format(PyObject*, PyObject*) {
  const KernelTable& kernels = *runtime().kernels;
  if (kernels.has_tiles()) return PyUnicode_FromString("tiles");
  if (kernels.has_spans()) return PyUnicode_FromString("spans");
  Py_RETURN_NONE;
}

using Fast = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);
PyMethodDef fast(const char* name, Fast function) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr};
}

PyMethodDef methods[] = {
    fast("set_threads", set_threads),
    {"threads_in_use", threads_in_use, METH_NOARGS, "The threads of the next step: fewer next to other processes."},
    fast("choose_threads", choose_threads),
    {"instruction_sets", instruction_sets, METH_NOARGS, "Names this processor can run, best first."},
    {"instruction_set", instruction_set, METH_NOARGS, "The name of the chosen kernels."},
    {"prompt_format", prompt_format, METH_NOARGS, "What the chosen kernels multiply of prompts: 'tiles', 'spans' or None."},
    {"use_instruction_set", use_instruction_set, METH_O, "Choose the kernels by name."},
    fast("linear", linear),
    fast("rms_norm", rms_norm),
    fast("gated_mul", gated_mul),
    fast("cap_values", cap_values),
    fast("quantize", quantize),
    fast("norm_quantize", norm_quantize),
    fast("silu_quantize", silu_quantize),
    fast("rope_and_write", rope_and_write),
    fast("attend", attend),
    fast("chain_digests", chain_digests),
    fast("make_decoder", make_decoder),
    fast("decode", decode),
    fast("decode_layers", decode_layers),
    fast("decode_several", decode_several),
    fast("set_adapter", set_adapter),
    fast("copy_blocks", copy_blocks),
    fast("sample_rows", sample_rows),
    fast("best_of_rows", best_of_rows),
    fast("multiply", multiply),
    fast("read_memory", read_memory),
    fast("meet", meet),
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_cpu", "Native CPU kernels.", -1, methods, nullptr, nullptr, nullptr,
                          nullptr};

}  // namespace
}  // namespace aio

PyMODINIT_FUNC PyInit__cpu() { return PyModule_Create(&aio::definition); }

// Python's door to the kernels of a routing decision.
#include "python_data.h"

namespace aio {
namespace {

using Fast = PyObject* (*)(PyObject*, Values, Py_ssize_t);
PyMethodDef fast(const char* name, Fast function) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr};
}

PyMethodDef methods[] = {fast("make_encoder", make_encoder),
                         fast("encode", encode),
                         fast("make_memory", make_memory),
                         fast("look_up", look_up),
                         fast("make_heads", make_heads),
                         fast("apply_heads", apply_heads),
                         fast("make_surface", make_surface),
                         fast("surface_features", surface_features),
                         {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_decision", "Kernels of a routing decision.", -1, methods,
                          nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace aio

PyMODINIT_FUNC PyInit__decision() { return PyModule_Create(&aio::definition); }

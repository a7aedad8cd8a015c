// Bindings of the kernels of a routing decision, and of what comes before it.
#include "python_data.h"

namespace aio {
namespace {

using Fast = PyObject* (*)(PyObject*, Values, Py_ssize_t);
PyMethodDef fast(const char* name, Fast function) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr};
}

PyMethodDef methods[] = {fast("make_encoder", make_encoder),
                         fast("read_encoder", read_encoder),
                         fast("encode", encode),
                         fast("make_surface", make_surface),
                         fast("surface_features", surface_features),
                         fast("make_options", make_options),
                         fast("make_marks", make_marks),
                         fast("marks_in", marks_in),
                         fast("make_spelling", make_spelling),
                         fast("corrections", corrections),
                         fast("make_signs", make_signs),
                         fast("signs_of", signs_of),
                         fast("plain_words", plain_words),
                         fast("make_material", make_material),
                         fast("has_no_material", has_no_material),
                         fast("read_turn", read_turn),
                         fast("make_trees", make_trees),
                         fast("make_complexity", make_complexity),
                         fast("class_probabilities", class_probabilities),
                         fast("make_transformer", make_transformer),
                         fast("pool_tokens", pool_tokens),
                         fast("json_excess", json_excess),
                         {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_decision", "Kernels of a routing decision.", -1, methods,
                          nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace aio

PyMODINIT_FUNC PyInit__decision() {
  PyObject* module = PyModule_Create(&aio::definition);
  // Incremented with every added or changed function: Python refuses an extension built from other sources.
  if (module && PyModule_AddIntConstant(module, "VERSION", 11) != 0) Py_CLEAR(module);
  return module;
}

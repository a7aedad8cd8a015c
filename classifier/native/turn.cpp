// All that a decision reads of a turn of ASCII, in one call.
#include "turn.h"

#include "trees.h"

namespace aio {

// (surface, options, encoder, complexity, trees of the classes, turn of ASCII, characters before the cut, features to
//  write, embedding to write) -> P of the four classes, as a list.
PyObject* read_turn(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 9, "read_turn")) return nullptr;
  const Surface* surface = surface_in(values[0]);
  const Options* options = surface ? held<Options>(values[1]) : nullptr;
  const Encoder* encoder = options ? encoder_in(values[2]) : nullptr;
  const Complexity* complexity = encoder ? complexity_in(values[3]) : nullptr;
  const Trees* trees = complexity ? held<Trees>(values[4]) : nullptr;
  if (!trees) return nullptr;
  if (!PyUnicode_Check(values[5]) || !PyUnicode_IS_ASCII(values[5]))
    return PyErr_Format(PyExc_TypeError, "read_turn takes an ASCII text");
  Array<float> features(values[7], true), embedding(values[8], true);
  if (features.failed || embedding.failed || !features.has(feature_count(*surface), "features") ||
      !embedding.has(dimension(*encoder), "embedding") ||
      !fits(*complexity, *trees, features.size(), embedding.size()))
    return nullptr;
  const double turn_chars = PyFloat_AsDouble(values[6]);
  if (PyErr_Occurred()) return nullptr;
  const std::string_view turn{static_cast<const char*>(PyUnicode_DATA(values[5])), size_t(PyUnicode_GET_LENGTH(values[5]))};
  const std::string lower = lowered(turn.data(), turn.size());
  const Words words = words_of(lower);
  put_surface(*surface, *options, turn, double(turn.size()), turn_chars, words, features.data());
  put_keywords(*surface, lower, features.data());
  embed(*encoder, words, embedding.data());
  return probabilities(*complexity, *trees, lower, words, features.data(), embedding.data());
}

}  // namespace aio

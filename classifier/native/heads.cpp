// The linear heads over one encoded turn, and which inputs moved the first of them most.
#include <algorithm>
#include <cmath>
#include <vector>

#include "python_data.h"

namespace aio {
namespace {

struct Heads {
  static constexpr const char* kName = "classifier.heads";
  int inputs, heads;
  float clip;
  std::vector<float> mean, inverse_scale;  // [inputs]
  std::vector<float> coef;                 // [inputs, heads]
  std::vector<float> bias;                 // [heads]
};

}  // namespace

// (mean [n], inverse scale [n], coef [n, h], bias [h], clip) -> capsule.
PyObject* make_heads(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 5, "make_heads")) return nullptr;
  Array<float> mean(values[0]), inverse(values[1]), coef(values[2]), bias(values[3]);
  if (mean.failed || inverse.failed || coef.failed || bias.failed) return nullptr;
  if (!inverse.has(mean.size(), "scale") || !coef.has(mean.size() * bias.size(), "coef")) return nullptr;
  const double clip = PyFloat_AsDouble(values[4]);
  if (PyErr_Occurred()) return nullptr;
  return capsule(new Heads{int(mean.size()), int(bias.size()), float(clip), {mean.begin(), mean.end()},
                           {inverse.begin(), inverse.end()}, {coef.begin(), coef.end()}, {bias.begin(), bias.end()}});
}

// (heads, features, embedding, word logits, neighbourhood logits, logits [h] to write, most) -> the `most` largest parts
// of the first logit as (input or group, effect), largest first: features singly, then the three others as wholes.
PyObject* apply_heads(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 7, "apply_heads")) return nullptr;
  const Heads* heads = held<Heads>(values[0]);
  if (!heads) return nullptr;
  Array<float> features(values[1]), embedding(values[2]), words(values[3]), nearby(values[4]), logits(values[5], true);
  if (features.failed || embedding.failed || words.failed || nearby.failed || logits.failed) return nullptr;
  const Py_ssize_t given = features.size() + embedding.size() + words.size() + nearby.size();
  if (given != heads->inputs) return PyErr_Format(PyExc_ValueError, "%zd inputs; %d are wanted", given, heads->inputs);
  if (!logits.has(heads->heads, "logits")) return nullptr;
  const Py_ssize_t most = PyLong_AsSsize_t(values[6]);
  if (PyErr_Occurred()) return nullptr;
  const int singles = int(features.size()), outcomes = heads->heads;
  std::vector<float> sum(heads->bias);
  std::vector<std::pair<float, int>> effects(singles + 3);
  int input = 0, group = singles;
  for (const Array<float>* part : {&features, &embedding, &words, &nearby}) {
    const bool single = part == &features;
    float whole = 0;
    for (float value : *part) {
      float standard = (value - heads->mean[input]) * heads->inverse_scale[input];
      // Not std::clamp: NaN stays NaN, as in the reference.
      standard = standard > heads->clip ? heads->clip : standard < -heads->clip ? -heads->clip : standard;
      const float* coef = &heads->coef[size_t(input) * outcomes];
      for (int h = 0; h < outcomes; h++) sum[h] += standard * coef[h];
      if (single) effects[input] = {standard * coef[0], input};
      whole += standard * coef[0];
      input++;
    }
    if (!single) effects[group] = {whole, group}, group++;
  }
  std::copy(sum.begin(), sum.end(), logits.data());
  const auto shown = std::min<size_t>(size_t(std::max<Py_ssize_t>(most, 0)), effects.size());
  std::partial_sort(effects.begin(), effects.begin() + shown, effects.end(), [](const auto& a, const auto& b) {
    return std::fabs(a.first) != std::fabs(b.first) ? std::fabs(a.first) > std::fabs(b.first) : a.second < b.second;
  });
  PyObject* found = PyList_New(Py_ssize_t(shown));
  for (size_t i = 0; found && i < shown; i++) {
    PyObject* effect = Py_BuildValue("(if)", effects[i].second, effects[i].first);
    if (!effect) {
      Py_DECREF(found);
      return nullptr;
    }
    PyList_SET_ITEM(found, Py_ssize_t(i), effect);
  }
  return found;
}

}  // namespace aio

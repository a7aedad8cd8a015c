#include "sampling.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <string>

#include "python_args.h"
#include "row_sampler.h"
#include "runtime.h"

namespace aio {

const SamplingKernels* sampling_kernels() {
  const std::string name = runtime().kernels->vectors;
#if defined(AIO_HAS_AVX512)
  if (name == sampling_avx512()->name) return sampling_avx512();
#endif
#if defined(AIO_HAS_AVX2)
  if (name == sampling_avx2()->name) return sampling_avx2();
#endif
  return sampling_portable();
}

namespace {

constexpr int64_t kUnlimited = int64_t(1) << 40;

std::vector<RowSampler> samplers;  // one per thread; guarded by the runtime's mutex

// -- settings ------------------------------------------------------------------------------------------

// Attribute names, interned once; an attribute read is then one dictionary probe.
struct Names {
#define AIO_NAME_OF(name) PyObject* name = PyUnicode_InternFromString(#name);
  AIO_NAME_OF(params) AIO_NAME_OF(prompt_token_ids) AIO_NAME_OF(output_token_ids) AIO_NAME_OF(seed)
  AIO_NAME_OF(position) AIO_NAME_OF(eos_token_ids) AIO_NAME_OF(temperature) AIO_NAME_OF(top_p) AIO_NAME_OF(top_k)
  AIO_NAME_OF(min_p) AIO_NAME_OF(repetition_penalty) AIO_NAME_OF(presence_penalty) AIO_NAME_OF(frequency_penalty)
  AIO_NAME_OF(logit_bias) AIO_NAME_OF(min_tokens) AIO_NAME_OF(stop_token_ids) AIO_NAME_OF(logprobs)
#undef AIO_NAME_OF
};

const Names& names() {
  static const Names* interned = new Names;
  return *interned;
}

// An owned reference, or null after an error.
class Object {
 public:
  Object(PyObject* owner, PyObject* name) : held_(owner ? PyObject_GetAttr(owner, name) : nullptr) {}
  explicit Object(PyObject* held) : held_(held) {}
  ~Object() { Py_XDECREF(held_); }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  PyObject* get() const { return held_; }

 private:
  PyObject* held_;
};

// Reads attributes of one object; after a failure a Python exception is set and reads give zero.
struct Reader {
  PyObject* owner;
  bool failed = false;

  double real(PyObject* name) {
    const Object value(owner, name);
    const double read = value.get() ? PyFloat_AsDouble(value.get()) : -1.0;
    if (read == -1.0 && PyErr_Occurred()) failed = true;
    return failed ? 0 : read;
  }

  // An integer, clamped to +-2^40: counts far beyond any vocabulary or context mean the same.
  int64_t count(PyObject* name) {
    const Object value(owner, name);
    int overflow = 0;
    const long long read = value.get() ? PyLong_AsLongLongAndOverflow(value.get(), &overflow) : -1;
    if (read == -1 && PyErr_Occurred()) failed = true;
    if (failed) return 0;
    if (overflow) return overflow * kUnlimited;
    return read > kUnlimited ? kUnlimited : read < -kUnlimited ? -kUnlimited : read;
  }

  uint64_t bits(PyObject* name) {
    const Object value(owner, name);
    const unsigned long long read = value.get() ? PyLong_AsUnsignedLongLongMask(value.get()) : 0;
    if (PyErr_Occurred()) failed = true;
    return read;
  }
};

bool refuse_token(PyObject* token, const char* param, int vocab) {
  const Object errors(PyImport_ImportModule("inference_core.errors"));
  const Object type(errors.get() ? PyObject_GetAttrString(errors.get(), "InvalidRequestError") : nullptr);
  if (!type.get()) return false;
  const Object message(PyUnicode_FromFormat("token id %S in %s is not in the vocabulary (0..%d)", token, param, vocab - 1));
  const Object error(message.get() ? PyObject_CallFunction(type.get(), "Os", message.get(), param) : nullptr);
  if (error.get()) PyErr_SetObject(type.get(), error.get());
  return false;
}

bool read_token(PyObject* item, const char* param, int vocab, int& token) {
  int overflow = 0;
  const long long read = PyLong_AsLongLongAndOverflow(item, &overflow);
  if (read == -1 && PyErr_Occurred()) return false;
  if (overflow || read < 0 || read >= vocab) return refuse_token(item, param, vocab);
  token = int(read);
  return true;
}

// Appends the ids of the list or tuple `owner.name`.
bool read_tokens(PyObject* owner, PyObject* name, int vocab, std::vector<int>& tokens) {
  const Object ids(owner, name);
  if (!ids.get()) return false;
  if (!PyList_Check(ids.get()) && !PyTuple_Check(ids.get())) {
    PyErr_Format(PyExc_TypeError, "%U must be a list or a tuple", name);
    return false;
  }
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(ids.get());
  PyObject** items = PySequence_Fast_ITEMS(ids.get());
  const char* param = PyUnicode_AsUTF8(name);
  tokens.reserve(tokens.size() + size_t(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    int token = 0;
    if (!read_token(items[i], param, vocab, token)) return false;
    tokens.push_back(token);
  }
  return true;
}

bool read_bias(PyObject* params, int vocab, RowSettings& settings) {
  const Object bias(params, names().logit_bias);
  if (!bias.get()) return false;
  if (!PyDict_Check(bias.get())) {
    PyErr_SetString(PyExc_TypeError, "logit_bias must be a dict");
    return false;
  }
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(bias.get(), &at, &key, &value);) {
    int token = 0;
    if (!read_token(key, "logit_bias", vocab, token)) return false;
    const double added = PyFloat_AsDouble(value);
    if (added == -1.0 && PyErr_Occurred()) return false;
    settings.bias.emplace_back(token, float(added));
  }
  return true;
}

uint64_t mix(uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// `reference_sampler.point`: element `position` of the SplitMix64 stream that starts at the mixed seed.
uint64_t point_of(uint64_t seed, uint64_t position) {
  return mix(mix(seed) + (position + 1) * 0x9E3779B97F4A7C15u) >> 11;
}

// Calls body(thread, row) for every row on whichever thread of the pool is free; rows differ in cost. The caller holds
// the runtime's mutex.
template <typename Body>
void for_rows(int rows, const Body& body) {
  ThreadPool& pool = *runtime().pool;
  if (samplers.size() < size_t(pool.threads())) samplers.resize(size_t(pool.threads()));
  std::atomic<int> next{0};
  const auto work = [&](int thread) {
    for (int row; (row = next.fetch_add(1, std::memory_order_relaxed)) < rows;) body(thread, row);
  };
  if (rows < 2) work(0); else pool.run(work);
}

}  // namespace

PyObject* as_object(const Drawn& drawn, const RowSettings& settings) {
  if (drawn.token < 0) Py_RETURN_NONE;
  if (settings.logprobs < 0) return PyLong_FromLong(drawn.token);
  PyObject* top = PyList_New(Py_ssize_t(drawn.top.size()));
  if (!top) return nullptr;
  for (size_t i = 0; i < drawn.top.size(); ++i) {
    PyObject* pair = Py_BuildValue("(id)", drawn.top[i].first, drawn.top[i].second);
    if (!pair) {
      Py_DECREF(top);
      return nullptr;
    }
    PyList_SET_ITEM(top, Py_ssize_t(i), pair);
  }
  return Py_BuildValue("(idN)", drawn.token, drawn.logprob, top);
}

bool check_vocabulary(int64_t vocab) {
  if (vocab >= 1 && vocab <= kMaxVocabulary) return true;
  PyErr_Format(PyExc_ValueError, "cannot sample from a vocabulary of %lld tokens; 1 to %d are possible",
               (long long)vocab, kMaxVocabulary);
  return false;
}

void draw_rows(const float* logits, int64_t ld, int vocab, const std::vector<RowSettings>& settings, Drawn* drawn) {
  const SamplingKernels& kernels = *sampling_kernels();
  for_rows(int(settings.size()), [&](int thread, int row) {
    drawn[row] = samplers[size_t(thread)].sample(kernels, logits + row * ld, vocab, settings[size_t(row)]);
  });
}

void RowSettings::advance(int token) {
  if (repetition_penalty != 1.0f) seen.push_back(token);
  if (presence_penalty != 0 || frequency_penalty != 0) output.push_back(token);
  ++position;
  if (position >= min_tokens) masked.clear();
  point = point_of(seed, uint64_t(position));
}

bool read_settings(PyObject* spec, int vocab, RowSettings& settings) {
  const Names& name = names();
  const Object params(spec, name.params);
  if (!params.get()) return false;
  Reader reader{params.get()};
  settings.temperature = reader.real(name.temperature);
  settings.top_p = reader.real(name.top_p);
  settings.min_p = reader.real(name.min_p);
  settings.top_k = reader.count(name.top_k);
  settings.repetition_penalty = float(reader.real(name.repetition_penalty));
  const double presence = reader.real(name.presence_penalty), frequency = reader.real(name.frequency_penalty);
  settings.presence_penalty = float(presence);
  settings.frequency_penalty = float(frequency);
  settings.min_tokens = reader.count(name.min_tokens);
  if (reader.failed) return false;
  const Object logprobs(params.get(), name.logprobs);
  if (!logprobs.get()) return false;
  settings.logprobs = -1;
  if (logprobs.get() != Py_None) settings.logprobs = int(std::min<int64_t>(reader.count(name.logprobs), vocab));
  Reader whole{spec};
  settings.position = whole.count(name.position);
  settings.seed = whole.bits(name.seed);
  settings.point = point_of(settings.seed, uint64_t(settings.position));
  if (reader.failed || whole.failed || !read_bias(params.get(), vocab, settings)) return false;
  if (settings.repetition_penalty != 1.0f &&
      !(read_tokens(spec, name.prompt_token_ids, vocab, settings.seen) &&
        read_tokens(spec, name.output_token_ids, vocab, settings.seen)))
    return false;
  if ((presence != 0 || frequency != 0) && !read_tokens(spec, name.output_token_ids, vocab, settings.output))
    return false;
  return settings.position >= settings.min_tokens || (read_tokens(spec, name.eos_token_ids, vocab, settings.masked) &&
                                                      read_tokens(params.get(), name.stop_token_ids, vocab, settings.masked));
}

bool read_stops(PyObject* spec, int vocab, std::vector<int>& stops) {
  return read_tokens(spec, names().eos_token_ids, vocab, stops);
}

PyObject* sample_rows(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 4, "sample_rows")) return nullptr;
  Arguments v{values};
  const auto logits = v.address<const float>(0);
  const int64_t ld = v.integer(1), vocab = v.integer(2);
  if (v.failed || !check_vocabulary(vocab)) return nullptr;
  if (!PyList_Check(values[3])) {
    PyErr_SetString(PyExc_TypeError, "specs must be a list");
    return nullptr;
  }
  const int rows = int(PyList_GET_SIZE(values[3]));
  std::vector<RowSettings> settings(size_t(rows), RowSettings{});
  for (int row = 0; row < rows; ++row)
    if (!read_settings(PyList_GET_ITEM(values[3], row), int(vocab), settings[size_t(row)])) return nullptr;
  std::vector<Drawn> drawn(static_cast<size_t>(rows));
  const Object done(without_gil([&] {
    std::lock_guard<std::mutex> lock(runtime().mutex);
    draw_rows(logits, ld, int(vocab), settings, drawn.data());
  }));
  if (!done.get()) return nullptr;
  PyObject* out = PyList_New(rows);
  for (int row = 0; out && row < rows; ++row) {
    PyObject* item = as_object(drawn[size_t(row)], settings[size_t(row)]);
    if (!item) {
      Py_DECREF(out);
      return nullptr;
    }
    PyList_SET_ITEM(out, row, item);
  }
  return out;
}

PyObject* best_of_rows(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 4, "best_of_rows")) return nullptr;
  Arguments v{values};
  const auto logits = v.address<const float>(0);
  const int64_t ld = v.integer(1), vocab = v.integer(2);
  const int rows = int(v.integer(3));
  if (v.failed || !check_vocabulary(vocab)) return nullptr;
  std::vector<int> best(static_cast<size_t>(rows));
  const SamplingKernels& kernels = *sampling_kernels();
  const Object done(without_gil([&] {
    std::lock_guard<std::mutex> lock(runtime().mutex);
    for_rows(rows, [&](int, int row) {
      const Best found = kernels.best_of_row(logits + row * ld, int(vocab));
      best[size_t(row)] = std::isfinite(found.value) ? found.index : -1;
    });
  }));
  if (!done.get()) return nullptr;
  PyObject* out = PyList_New(rows);
  for (int row = 0; out && row < rows; ++row) {
    PyObject* id = PyLong_FromLong(best[size_t(row)]);
    if (!id) {
      Py_DECREF(out);
      return nullptr;
    }
    PyList_SET_ITEM(out, row, id);
  }
  return out;
}

}  // namespace aio

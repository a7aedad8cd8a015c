// Builds decoders from addresses that Python passes, and batches from its ScheduledSequences.
#include "decoder_python.h"

#include <algorithm>
#include <cstring>

#include "decode_loop.h"
#include "decoder.h"
#include "python_args.h"
#include "runtime.h"

namespace aio {
namespace {

constexpr const char* kCapsule = "aio.decoder";

// Items of tuples and lists, one after another; the first failure sticks and leaves Python's exception set.
class Reader {
 public:
  Reader(PyObject* sequence, const char* what) : items_(PySequence_Fast(sequence, what)) {}
  ~Reader() { Py_XDECREF(items_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  Py_ssize_t size() const { return items_ ? PySequence_Fast_GET_SIZE(items_) : 0; }
  bool done() const { return at_ >= size(); }
  bool ok() const { return items_ && !PyErr_Occurred(); }

  PyObject* object() {
    if (at_ < size()) return PySequence_Fast_GET_ITEM(items_, at_++);
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a tuple of the decoder's description is too short");
    return nullptr;
  }
  int64_t integer() {
    PyObject* item = object();
    return item ? PyLong_AsLongLong(item) : -1;
  }
  int integer32() { return int(integer()); }
  double real() {
    PyObject* item = object();
    return item ? PyFloat_AsDouble(item) : -1;
  }
  template <typename T>
  const T* address() { return reinterpret_cast<const T*>(integer()); }

 private:
  PyObject* items_;
  Py_ssize_t at_ = 0;
};

// (in_features, out_features, [(scheme, panels, panel_bytes, out_features, bias, outliers' panels), ...],
//  [outlier, ...], the norm's weight with zeros for them)
void read_projection(PyObject* description, Projection& p) {
  if (!description) return;
  Reader r(description, "a projection is a tuple");
  p.k = r.integer32();
  p.n = r.integer32();
  PyObject* parts = r.object();
  if (!parts) return;
  Reader list(parts, "a projection's parts are a list");
  while (list.ok() && !list.done()) {
    Reader item(list.object(), "a part is a tuple");
    LinearPart part{};
    part.scheme = Scheme(item.integer());
    part.panels = item.address<uint8_t>();
    part.panel_bytes = item.integer();
    part.n = item.integer32();
    part.bias = item.address<float>();
    part.outliers = item.address<uint16_t>();
    p.parts.push_back(part);
  }
  PyObject* outliers = r.object();
  if (!outliers) return;
  Reader channels(outliers, "a projection's outliers are a list");
  while (channels.ok() && !channels.done()) p.outliers.push_back(channels.integer32());
  p.quantized_norm = r.address<float>();
  if (p.outliers.size() > size_t(kMostOutliers))
    PyErr_Format(PyExc_ValueError, "a projection has at most %d outliers", kMostOutliers);
}

void read_geometry(PyObject* description, Geometry& g) {
  Reader r(description, "the geometry is a tuple");
  for (int* field : {&g.hidden, &g.intermediate, &g.heads, &g.kv_heads, &g.head_dim, &g.vocab, &g.window, &g.block_size,
                     &g.max_position})
    *field = r.integer32();
  g.norm_whole = r.integer() != 0;
  g.activation = Activation(r.integer());
  g.swiglu_alpha = float(r.real());
  g.swiglu_limit = float(r.real());
  g.attention_softcap = float(r.real());
  g.final_softcap = float(r.real());
  g.experts = r.integer32();
  g.experts_per_token = r.integer32();
  g.normalise_experts = r.integer() != 0;
  g.kv_dtype = KVDtype(r.integer());
  for (int64_t* field : {&g.layer_bytes, &g.block_bytes, &g.slab_bytes, &g.blocks_per_slab, &g.arena_bytes})
    *field = r.integer();
  g.tables = r.integer32();
  g.first_has_window = r.integer() != 0;
}

void read_embedding(PyObject* description, EmbeddingTable& e) {
  Reader r(description, "the embedding is a tuple");
  e.encoding = Encoding(r.integer());
  e.data = r.address<uint8_t>();
  e.row_bytes = r.integer();
  e.rows = r.integer();
  e.columns = r.integer32();
  e.round_to_bf16 = r.integer() != 0;
  e.scale = float(r.real());
}

// (router, [gate_up, ...], [down, ...])
void read_experts(PyObject* description, Experts& experts) {
  if (!description) return;
  Reader r(description, "the experts are a tuple");
  read_projection(r.object(), experts.router);
  for (std::vector<Projection>* list : {&experts.gate_up, &experts.down}) {
    PyObject* items = r.object();
    if (!items) return;
    Reader each(items, "the experts' projections are a list");
    while (each.ok() && !each.done()) {
      list->emplace_back();
      read_projection(each.object(), list->back());
    }
  }
}

void read_layers(PyObject* description, std::vector<LayerWeights>& layers) {
  Reader list(description, "the layers are a list");
  while (list.ok() && !list.done()) {
    Reader r(list.object(), "a layer is a tuple");
    LayerWeights layer{};
    layer.attention_norm = r.address<float>();
    layer.q_norm = r.address<float>();
    layer.k_norm = r.address<float>();
    layer.mlp_norm = r.address<float>();
    layer.attention_post_norm = r.address<float>();
    layer.mlp_post_norm = r.address<float>();
    layer.sinks = r.address<float>();
    layer.cos_sin = r.address<float>();
    layer.windowed = r.integer() != 0;
    layer.table = r.integer32();
    layer.in_block = r.integer32();
    for (Projection* p : {&layer.qkv, &layer.output}) read_projection(r.object(), *p);
    if (r.integer()) {
      read_experts(r.object(), layer.experts);
    } else {
      for (Projection* p : {&layer.gate_up, &layer.down}) read_projection(r.object(), *p);
    }
    layers.push_back(std::move(layer));
  }
}

// [(down, up, inputs, outputs, rank, column, scale), ...]; counts the projection's ranks and their tiles.
void read_low_ranks(PyObject* description, bool bfloat16, std::vector<LowRank>& parts, int& ranks, int& tiles) {
  if (!description) return;
  Reader list(description, "the adapted layers of a projection are a list");
  while (list.ok() && !list.done()) {
    Reader r(list.object(), "an adapted layer is a tuple");
    LowRank low{};
    low.bfloat16 = bfloat16;
    low.down = r.address<uint8_t>();
    low.up = r.address<uint8_t>();
    low.k = r.integer32();
    low.n = r.integer32();
    low.rank = r.integer32();
    low.column = r.integer32();
    low.scale = float(r.real());
    low.at = ranks;
    ranks += low.rank;
    tiles += rank_tiles(low.rank);
    parts.push_back(low);
  }
}

void read_adapter(PyObject* description, bool bfloat16, Adapter& adapter) {
  Reader list(description, "an adapter's layers are a list");
  while (list.ok() && !list.done()) {
    Reader r(list.object(), "an adapter's layer is a tuple");
    Adapter::Layer layer;
    for (int p = 0; p < kAdaptedProjections; ++p) {
      int ranks = 0, tiles = 0;
      read_low_ranks(r.object(), bfloat16, layer.parts[p], ranks, tiles);
      adapter.ranks = std::max(adapter.ranks, ranks);
      adapter.tiles[p] = std::max(adapter.tiles[p], tiles);
    }
    adapter.layers.push_back(std::move(layer));
  }
}

DecoderWeights* weights_of(PyObject* capsule) {
  return static_cast<DecoderWeights*>(PyCapsule_GetPointer(capsule, kCapsule));
}

void destroy(PyObject* capsule) { delete weights_of(capsule); }

struct Names {
  PyObject* token_ids = PyUnicode_InternFromString("token_ids");
  PyObject* start = PyUnicode_InternFromString("start");
  PyObject* block_table = PyUnicode_InternFromString("block_table");
  PyObject* window_tables = PyUnicode_InternFromString("window_tables");
  PyObject* sample = PyUnicode_InternFromString("sample");
  PyObject* adapter = PyUnicode_InternFromString("adapter");
  PyObject* fast_until = PyUnicode_InternFromString("fast_until");
};

// A new reference, released at the end of the scope.
class Owned {
 public:
  explicit Owned(PyObject* object) : object_(object) {}
  ~Owned() { Py_XDECREF(object_); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

bool refuse(PyObject* kind, const char* format, long long given, long long allowed) {
  PyErr_Format(kind, format, given, allowed);
  return false;
}

// The byte offset of a block in the arena; false for a block that does not exist.
bool block_offset(const Geometry& g, long long block, int64_t& offset) {
  const int64_t slab = g.blocks_per_slab ? block / g.blocks_per_slab : 0;
  offset = slab * g.slab_bytes + (block - slab * g.blocks_per_slab) * g.block_bytes;
  if (block >= 0 && g.blocks_per_slab && offset + g.block_bytes <= g.arena_bytes) return true;
  return refuse(PyExc_IndexError, "block %lld is outside the arena of %lld bytes", block, (long long)g.arena_bytes);
}

// The slot of the sequence's adapter for each of its tokens; false for one that holds none.
bool append_adapter(const DecoderWeights& w, PyObject* sequence, PyObject* name, Py_ssize_t tokens, Batch& batch) {
  if (w.adapters.empty()) return true;
  const Owned adapter(PyObject_GetAttr(sequence, name));
  if (!adapter) return false;
  const long long slot = PyLong_AsLongLong(adapter.get());
  if (slot >= (long long)w.adapters.size() || (slot >= 0 && !w.adapters[size_t(slot)]))
    return refuse(PyExc_IndexError, "slot %lld holds no adapter; there are %lld slots", slot, (long long)w.adapters.size());
  batch.adapters.insert(batch.adapters.end(), size_t(tokens), int32_t(slot));
  return true;
}

// Appends a sequence's table and the slots of its tokens at positions [first, end). In a table with a window, blocks that
// none of these sees may be missing: the first one seen, which is full, stands in for them, since attention reads whole
// chunks of tokens and gives those behind the window the weight 0.
bool append_table(const Geometry& g, PyObject* table, long long first, long long end, bool has_window, Batch::Tables& to) {
  if (!PyList_Check(table)) {
    PyErr_SetString(PyExc_TypeError, "block tables must be lists");
    return false;
  }
  const long long blocks = PyList_GET_SIZE(table);
  if (end > blocks * g.block_size)
    return refuse(PyExc_IndexError, "tokens up to position %lld do not fit a table of %lld blocks", end, blocks);
  const long long seen = has_window ? std::max(0LL, first - g.window + 1) / g.block_size : 0;
  const size_t start = to.block_offsets.size();
  for (long long i = seen; i < blocks; ++i) {
    int64_t offset;
    if (!block_offset(g, PyLong_AsLongLong(PyList_GET_ITEM(table, Py_ssize_t(i))), offset)) return false;
    if (i == seen) to.block_offsets.insert(to.block_offsets.end(), size_t(seen), offset);
    to.block_offsets.push_back(offset);
  }
  for (long long position = first; position < end; ++position)
    to.slots.push_back(to.block_offsets[start + size_t(position / g.block_size)]);
  to.start.push_back(int32_t(start));
  return true;
}

// The tables of groups after the first; false with an exception set if there are not as many as the layers have.
bool append_window_tables(const Geometry& g, PyObject* sequence, PyObject* name, long long first, long long end, Batch& batch) {
  const Owned given(PyObject_GetAttr(sequence, name));
  if (!given) return false;
  const Owned tables(PySequence_Fast(given.get(), "window_tables must be a list"));
  if (!tables) return false;
  const long long count = PySequence_Fast_GET_SIZE(tables.get());
  if (count != g.tables - 1)
    return refuse(PyExc_IndexError, "%lld window tables are given, but the layers have %lld", count, g.tables - 1);
  for (long long i = 0; i < count; ++i)
    if (!append_table(g, PySequence_Fast_GET_ITEM(tables.get(), Py_ssize_t(i)), first, end, true, batch.tables[size_t(i + 1)]))
      return false;
  return true;
}

// Appends one ScheduledSequence to the batch; false with an exception set if it is not well formed.
bool append(const DecoderWeights& w, PyObject* sequence, Batch& batch) {
  static const Names names;
  const Geometry& g = w.geometry;
  const Owned tokens(PyObject_GetAttr(sequence, names.token_ids)), start(PyObject_GetAttr(sequence, names.start));
  const Owned table(PyObject_GetAttr(sequence, names.block_table)), sample(PyObject_GetAttr(sequence, names.sample));
  if (!tokens || !start || !table || !sample) return false;
  if (!PyList_Check(tokens.get())) {
    PyErr_SetString(PyExc_TypeError, "token_ids must be a list");
    return false;
  }
  const Owned until(PyObject_GetAttr(sequence, names.fast_until));
  if (!until) return false;
  const long long first = PyLong_AsLongLong(start.get()), fast_until = PyLong_AsLongLong(until.get());
  const Py_ssize_t count = PyList_GET_SIZE(tokens.get());
  const long long end = first + count;
  if (first < 0 || count == 0 || end > g.max_position)
    return refuse(PyExc_IndexError, "tokens up to position %lld do not fit %lld positions", end, g.max_position);

  if (!append_adapter(w, sequence, names.adapter, count, batch)) return false;
  if (!append_table(g, table.get(), first, end, g.first_has_window, batch.tables[0])) return false;
  if (g.tables > 1 && !append_window_tables(g, sequence, names.window_tables, first, end, batch)) return false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    const long long token = PyLong_AsLongLong(PyList_GET_ITEM(tokens.get(), i));
    if (token < 0 || token >= w.embedding.rows)
      return refuse(PyExc_IndexError, "token id %lld is outside the vocabulary of %lld", token, w.embedding.rows);
    const int position = int(first + i);
    batch.token_ids.push_back(int32_t(token));
    batch.positions.push_back(position);
    batch.prompt.push_back(position < fast_until);
  }
  batch.query_start.push_back(batch.tokens());
  batch.context_len.push_back(int32_t(end));
  if (sample.get() != Py_None) batch.sample_rows.push_back(batch.tokens() - 1);
  return !PyErr_Occurred();
}

// The rows whose logits are wanted, instead of those that sample; strictly ascending.
bool replace_rows(PyObject* rows, Batch& batch) {
  Reader r(rows, "rows must be a list");
  batch.sample_rows.clear();
  while (r.ok() && !r.done()) {
    const long long row = r.integer();
    if (row < 0 || row >= batch.tokens() || (!batch.sample_rows.empty() && row <= batch.sample_rows.back()))
      return refuse(PyExc_IndexError, "row %lld is not one of %lld tokens, or out of order", row, batch.tokens());
    batch.sample_rows.push_back(int32_t(row));
  }
  return r.ok();
}

}  // namespace

PyObject* make_decoder(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 7, "make_decoder")) return nullptr;
  Arguments v{values};
  auto made = std::make_unique<DecoderWeights>();
  read_geometry(values[0], made->geometry);
  made->geometry.rms_eps = v.real(1);
  read_embedding(values[2], made->embedding);
  read_layers(values[3], made->layers);
  made->final_norm = v.address<const float>(4);
  read_projection(values[5], made->head);
  made->arena = v.address<uint8_t>(6);
  if (PyErr_Occurred()) return nullptr;
  return PyCapsule_New(made.release(), kCapsule, destroy);
}

namespace {

// Reads the batch of `scheduled`, a list of ScheduledSequences; false with an exception set if it is not well formed.
bool read_batch(const DecoderWeights& weights, PyObject* scheduled, Batch& batch) {
  runtime().rouse();
  batch.clear();
  if (batch.tables.size() < size_t(weights.geometry.tables)) batch.tables.resize(size_t(weights.geometry.tables));
  batch.query_start.push_back(0);
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(scheduled); ++i)
    if (!append(weights, PySequence_Fast_GET_ITEM(scheduled, i), batch)) return false;
  return true;
}

PyObject* as_tuple(const StepTimes& times) {
  return Py_BuildValue("(dddddd)", times.embedding, times.linears, times.attention, times.rotary, times.rows, times.head);
}

// Computes `range` of `scheduled`, whose hidden states have room for `tokens` rows; null with an exception set.
PyObject* compute(const DecoderWeights& weights, PyObject* scheduled, const LayerRange& range, int64_t tokens,
                  float* logits, int64_t room, PyObject* rows) {
  const Owned sequences(PySequence_Fast(scheduled, "sequences must be a list"));
  if (!sequences) return nullptr;

  thread_local Batch batch;
  if (!read_batch(weights, sequences.get(), batch)) return nullptr;
  if (rows != Py_None && !replace_rows(rows, batch)) return nullptr;
  const long long sampled = (long long)batch.sample_rows.size();
  if (!range.output && sampled > room) {
    refuse(PyExc_ValueError, "%lld rows are sampled, but there is room for %lld", sampled, room);
    return nullptr;
  }
  if ((range.input || range.output) && batch.tokens() > tokens) {
    refuse(PyExc_ValueError, "%lld tokens are computed, but there are %lld rows of states", batch.tokens(), tokens);
    return nullptr;
  }
  StepTimes times;
  if (batch.tokens() > 0) {
    const Owned done(without_gil([&] {
      std::lock_guard<std::mutex> lock(runtime().mutex);
      times = decode_step(weights, batch, range, logits);
    }));
    if (!done) return nullptr;
  }
  return as_tuple(times);
}

// Whether `steps` steps of a batch can follow each other: one generated token per sequence, which samples, and room in its
// tables for all of them.
bool check_steps(const DecoderWeights& weights, const Batch& batch, int64_t steps, int64_t room) {
  const Geometry& g = weights.geometry;
  const size_t rows = size_t(batch.sequences());
  if (steps < 1 || !rows || room < int64_t(rows))
    return refuse(PyExc_ValueError, "%lld steps of %lld sequences, or more than there is room for", steps, (long long)rows);
  if (size_t(batch.tokens()) != rows || batch.sample_rows.size() != rows ||
      std::any_of(batch.prompt.begin(), batch.prompt.end(), [](uint8_t prompt) { return prompt != 0; }))
    return refuse(PyExc_ValueError, "%lld tokens of %lld sequences are not one generated token each", batch.tokens(),
                  (long long)rows);
  for (size_t row = 0; row < rows; ++row) {
    const int64_t end = batch.positions[row] + steps;
    if (end > g.max_position)
      return refuse(PyExc_IndexError, "tokens up to position %lld do not fit %lld positions", end, g.max_position);
    for (int i = 0; i < g.tables; ++i) {
      const Batch::Tables& t = batch.tables[size_t(i)];
      const size_t last = row + 1 < rows ? size_t(t.start[row + 1]) : t.block_offsets.size();
      const int64_t blocks = int64_t(last) - t.start[row];
      if (end > blocks * g.block_size)
        return refuse(PyExc_IndexError, "tokens up to position %lld do not fit a table of %lld blocks", end, blocks);
    }
  }
  return true;
}

bool read_rows(PyObject* sequences, int vocab, DecodingRows& rows) {
  static PyObject* const name = PyUnicode_InternFromString("sample");
  const size_t count = size_t(PySequence_Fast_GET_SIZE(sequences));
  rows.settings.resize(count);
  rows.stops.resize(count);
  for (size_t row = 0; row < count; ++row) {
    const Owned spec(PyObject_GetAttr(PySequence_Fast_GET_ITEM(sequences, Py_ssize_t(row)), name));
    if (!spec || !read_settings(spec.get(), vocab, rows.settings[row]) || !read_stops(spec.get(), vocab, rows.stops[row]))
      return false;
  }
  return true;
}

// Per row the draws of all steps; null with an exception set.
PyObject* as_lists(const DecodedSteps& done, const DecodingRows& rows) {
  const size_t count = rows.settings.size();
  PyObject* lists = PyList_New(Py_ssize_t(count));
  for (size_t row = 0; lists && row < count; ++row) {
    PyObject* tokens = PyList_New(done.steps);
    if (tokens) PyList_SET_ITEM(lists, Py_ssize_t(row), tokens);
    for (int step = 0; tokens && step < done.steps; ++step) {
      PyObject* item = as_object(done.drawn[size_t(step) * count + row], rows.settings[row]);
      if (item) PyList_SET_ITEM(tokens, step, item);
      else tokens = nullptr;
    }
    if (!tokens) Py_CLEAR(lists);
  }
  return lists;
}

// False with an exception set if they are not well formed.
bool read_channels(PyObject* described, size_t rows, std::vector<TokenChannel>& channels) {
  Reader list(described, "channels must be a list");
  while (list.ok() && !list.done()) {
    Reader r(list.object(), "a channel is a tuple");
    const int socket = r.integer32();
    const auto* queued = r.address<std::atomic<int64_t>>();
    const auto* written = r.address<std::atomic<int64_t>>();
    PyObject* heads = r.object();
    if (!heads) return false;
    TokenChannel& channel = channels.emplace_back(socket, queued, written);
    Reader items(heads, "the rows of a channel are a list");
    while (items.ok() && !items.done()) {
      Reader item(items.object(), "a row of a channel is a tuple");
      const long long row = item.integer();
      PyObject* head = item.object();
      if (!head || !PyBytes_Check(head) || row < 0 || row >= (long long)rows)
        return refuse(PyExc_ValueError, "row %lld of a channel has no bytes, or is not one of %lld", row, (long long)rows);
      channel.rows.push_back({int(row), std::string(PyBytes_AS_STRING(head), size_t(PyBytes_GET_SIZE(head)))});
    }
  }
  return !PyErr_Occurred();
}

// Per row of how many steps the tokens have left.
PyObject* sent_steps(const std::vector<TokenChannel>& channels, size_t rows) {
  std::vector<int> sent(rows, 0);
  for (const TokenChannel& channel : channels)
    for (const TokenChannel::Row& row : channel.rows) sent[size_t(row.row)] = channel.sent();
  PyObject* list = PyList_New(Py_ssize_t(rows));
  for (size_t row = 0; list && row < rows; ++row) PyList_SET_ITEM(list, Py_ssize_t(row), PyLong_FromLong(sent[row]));
  return list;
}

}  // namespace

PyObject* decode_several(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 7, "decode_several")) return nullptr;
  Arguments v{values};
  const DecoderWeights* weights = weights_of(values[0]);
  float* logits = v.address<float>(2);
  const int64_t room = v.integer(3), steps = v.integer(4);
  const auto* interruption = v.address<const std::atomic<int32_t>>(5);
  const Owned sequences(PySequence_Fast(values[1], "sequences must be a list"));
  if (!weights || !sequences || v.failed) return nullptr;
  thread_local Batch batch;
  DecodingRows rows;
  std::vector<TokenChannel> channels;
  if (!read_batch(*weights, sequences.get(), batch) || !check_steps(*weights, batch, steps, room) ||
      !check_vocabulary(weights->geometry.vocab) || !read_rows(sequences.get(), weights->geometry.vocab, rows) ||
      !read_channels(values[6], rows.settings.size(), channels))
    return nullptr;
  DecodedSteps done;
  const Owned ended(without_gil([&] {
    std::lock_guard<std::mutex> lock(runtime().mutex);
    done = decode_steps(*weights, batch, rows, int(steps), *interruption, logits, channels);
  }));
  if (!ended) return nullptr;
  PyObject* drawn = as_lists(done, rows);
  PyObject* sent = drawn ? sent_steps(channels, rows.settings.size()) : nullptr;
  if (!sent) {
    Py_XDECREF(drawn);
    return nullptr;
  }
  return Py_BuildValue("(NNN)", as_tuple(done.times), drawn, sent);
}

PyObject* decode(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 5, "decode")) return nullptr;
  Arguments v{values};
  const DecoderWeights* weights = weights_of(values[0]);
  float* logits = v.address<float>(2);
  const int64_t room = v.integer(3);
  if (!weights || v.failed) return nullptr;
  const LayerRange all{0, int(weights->layers.size()), nullptr, nullptr};
  return compute(*weights, values[1], all, 0, logits, room, values[4]);
}

PyObject* decode_layers(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 10, "decode_layers")) return nullptr;
  Arguments v{values};
  const DecoderWeights* weights = weights_of(values[0]);
  const int64_t begin = v.integer(2), end = v.integer(3), tokens = v.integer(6), room = v.integer(8);
  const float* input = v.address<const float>(4);
  float* output = v.address<float>(5);
  float* logits = v.address<float>(7);
  if (!weights || v.failed) return nullptr;
  const int64_t layers = int64_t(weights->layers.size());
  if (begin < 0 || begin > end || end > layers || (begin == 0) != (input == nullptr) || (!output && end != layers)) {
    PyErr_Format(PyExc_ValueError, "layers %lld to %lld of %lld: states must go in after layer 0 and come out before the head",
                 (long long)begin, (long long)end, (long long)layers);
    return nullptr;
  }
  return compute(*weights, values[1], LayerRange{int(begin), int(end), input, output}, tokens, logits, room, values[9]);
}

PyObject* set_adapter(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 4, "set_adapter")) return nullptr;
  Arguments v{values};
  DecoderWeights* weights = weights_of(values[0]);
  const int64_t slot = v.integer(1), bfloat16 = v.integer(2);
  if (!weights || v.failed) return nullptr;
  std::unique_ptr<Adapter> adapter;
  if (values[3] != Py_None) {
    adapter = std::make_unique<Adapter>();
    read_adapter(values[3], bfloat16 != 0, *adapter);
  }
  if (PyErr_Occurred()) return nullptr;
  if (slot < 0 || (adapter && adapter->layers.size() != weights->layers.size())) {
    refuse(PyExc_ValueError, "slot %lld, or an adapter that has not the %lld layers of the decoder", slot,
           (long long)weights->layers.size());
    return nullptr;
  }
  if (size_t(slot) >= weights->adapters.size()) weights->adapters.resize(size_t(slot) + 1);
  weights->adapters[size_t(slot)] = std::move(adapter);
  Py_RETURN_NONE;
}

PyObject* copy_blocks(PyObject*, PyObject* const* values, Py_ssize_t count) {
  if (!expect(count, 2, "copy_blocks")) return nullptr;
  const DecoderWeights* weights = weights_of(values[0]);
  if (!weights) return nullptr;
  Reader pairs(values[1], "copies must be a list of pairs");
  while (pairs.ok() && !pairs.done()) {
    Reader pair(pairs.object(), "a copy is a pair (from, to)");
    const long long from = pair.integer(), to = pair.integer();
    int64_t source, target;
    if (!pair.ok() || !block_offset(weights->geometry, from, source) || !block_offset(weights->geometry, to, target))
      return nullptr;
    if (source != target) memcpy(weights->arena + target, weights->arena + source, size_t(weights->geometry.block_bytes));
  }
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
}

}  // namespace aio

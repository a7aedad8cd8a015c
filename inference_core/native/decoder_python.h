// Entry points of the native decoder.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace aio {

// make_decoder(geometry, eps, embedding, layers, final_norm, head, arena, cos_sin) -> capsule; see execution/native_decoder.py.
PyObject* make_decoder(PyObject*, PyObject* const* values, Py_ssize_t count);

// decode(decoder, sequences, logits, room, rows) -> (seconds of embedding, linears, attention, rotary, rows, head)
// Writes the logits of `rows`, or of the rows that sample if it is None; `logits` has room for so many.
PyObject* decode(PyObject*, PyObject* const* values, Py_ssize_t count);

// decode_layers(decoder, sequences, begin, end, input, output, tokens, logits, room, rows) -> as `decode`
// Layers [begin, end) alone, from and to hidden states float32 [tokens, hidden] at the addresses `input` (0 where begin is
// 0) and `output`; without an output on to the logits, as `decode` does it.
PyObject* decode_layers(PyObject*, PyObject* const* values, Py_ssize_t count);

// decode_several(decoder, sequences, logits, room, steps, interruption, channels)
//   -> (times as `decode`, [[draw of each step], ...], [steps of each sequence whose tokens have left, ...])
// See `decode_steps` of decode_loop.h; draws are `sample_rows`' and logits' room is of the sequences. `interruption` is the
// address of an int32 that any thread may set; `channels` are (socket, addresses of int64 `queued` and `written`,
// [(row, head), ...]), with every row at most once.
PyObject* decode_several(PyObject*, PyObject* const* values, Py_ssize_t count);

// set_adapter(decoder, slot, bfloat16, layers or None): sets the adapter of scheduled sequences with that slot;
// `layers` is PackedAdapter.layers of lora/packing.py, whose memory the caller keeps alive.
PyObject* set_adapter(PyObject*, PyObject* const* values, Py_ssize_t count);

// copy_blocks(decoder, [(from, to), ...])
PyObject* copy_blocks(PyObject*, PyObject* const* values, Py_ssize_t count);

}  // namespace aio

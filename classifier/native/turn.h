// The parts of what is computed of a turn, each in a file of its own.
#pragma once
#include <string_view>

#include "options.h"
#include "words.h"

namespace aio {

struct Surface;
struct Encoder;
struct Complexity;
struct Trees;

// What a capsule holds; null with a Python error set.
const Surface* surface_in(PyObject* capsule);
const Encoder* encoder_in(PyObject* capsule);
const Complexity* complexity_in(PyObject* capsule);

Py_ssize_t feature_count(const Surface& surface);
// Writes all features but the counts of keywords, which are left. `chars`: the characters of the turn, which is UTF-8.
void put_surface(const Surface& surface, const Options& options, std::string_view turn, double chars, double turn_chars,
                 const Words& words, float* features);
// Writes the counts of keywords in a lower-case turn of ASCII.
void put_keywords(const Surface& surface, std::string_view lower, float* features);

int dimension(const Encoder& encoder);
void embed(const Encoder& encoder, const Words& words, float* embedding);

// Whether arrays of so many numbers are what the model reads; a Python error otherwise.
bool fits(const Complexity& model, const Trees& trees, Py_ssize_t features, Py_ssize_t embedding);
// P of the four classes of a lower-case turn of ASCII, as a list.
PyObject* probabilities(const Complexity& model, const Trees& trees, std::string_view lower, const Words& words,
                        const float* features, const float* embedding);

}  // namespace aio

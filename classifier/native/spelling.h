// Misspelt words; `classifier.features.plain_form` is the reference.
#pragma once
#include <string>
#include <string_view>

#include "python_data.h"

namespace aio {

struct Spelling;

// What a capsule holds; null with a Python error set.
const Spelling* spelling_in(PyObject* capsule);
// Whether any word of a lower-case text of ASCII would be corrected.
bool is_misspelt(const Spelling& spelling, std::string_view lower);
// Replaces the misspelt words of a text, in lower case.
void correct(const Spelling& spelling, std::u32string& text);

}  // namespace aio

// Kinds of bytes, in the order of `classifier.features.surface_features.CharacterCounts`.
#pragma once

namespace aio {

enum Kind { kOther, kQuestion, kExclamation, kLineBreak, kOtherSpace, kDollar, kOtherMaths, kBracket, kDigit, kQuote,
            kBackslash, kComma, kCapital, kNonAscii, kKinds };  // clang-format off

}  // namespace aio

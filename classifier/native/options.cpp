// Features of a question's options and stem in a few passes over its bytes.
#include "options.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "byte_kinds.h"
#include "python_data.h"

namespace aio {
namespace {

constexpr int kLongWord = 8;

// A word by its hash; collisions of 64 bits within one turn are negligible.
struct Word {
  size_t begin;
  uint64_t hash;
  int length;
  bool digits_only, has_digit;
};

uint64_t extended(uint64_t hash, unsigned char byte) { return (hash ^ byte) * 0x100000001b3u; }
constexpr uint64_t kEmpty = 0xcbf29ce484222325u;

std::vector<Word> words_of(const Options& options, const unsigned char* text, size_t size) {
  std::vector<Word> found;
  for (size_t i = 0; i < size;) {
    if (options.word_of[text[i]] == ' ') {
      i++;
      continue;
    }
    Word word{i, kEmpty, 0, true, false};
    for (; i < size && options.word_of[text[i]] != ' '; i++) {
      const unsigned char c = options.word_of[text[i]];
      word.hash = extended(word.hash, c), word.length++;
      (c == '0' ? word.has_digit : word.digits_only) = c == '0';
    }
    found.push_back(word);
  }
  return found;
}

std::vector<uint64_t> distinct(const std::vector<Word>& words) {
  std::vector<uint64_t> hashes;
  hashes.reserve(words.size());
  for (const Word& word : words) hashes.push_back(word.hash);
  std::sort(hashes.begin(), hashes.end());
  hashes.erase(std::unique(hashes.begin(), hashes.end()), hashes.end());
  return hashes;
}

// How many values occur, and how many of them `times` times.
std::pair<int, int> occurring(std::vector<uint64_t> values, size_t times) {
  std::sort(values.begin(), values.end());
  int different = 0, often = 0;
  for (size_t i = 0, next; i < values.size(); i = next) {
    for (next = i + 1; next < values.size() && values[next] == values[i]; next++) {
    }
    different++, often += next - i == times;
  }
  return {different, often};
}

int long_words(const std::vector<Word>& words) {
  return int(std::count_if(words.begin(), words.end(), [](const Word& word) { return word.length > kLongWord; }));
}

// As Python's bytes.isspace.
bool is_space(unsigned char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(unsigned char c) { return c >= '0' && c <= '9'; }

// Length of the mark of an option that begins at the line break `at`, or 0.
size_t mark_at(const unsigned char* text, size_t size, size_t at) {
  const size_t letter = at + 1 + (at + 1 < size && text[at + 1] == '(');
  if (letter + 2 >= size || text[letter] < 'A' || text[letter] > 'J' || text[letter + 2] != ' ') return 0;
  return text[letter + 1] == '.' || text[letter + 1] == ')' || text[letter + 1] == ':' ? letter + 3 - at : 0;
}

float* put_options(const Options& options, const unsigned char* text, size_t size,
                   const std::vector<std::pair<size_t, size_t>>& spans, const std::vector<uint64_t>& asked, float* next) {
  double length = 0, squares = 0, letters = 0, sets = 0, with_digits = 0, of_numbers = 0, negated = 0, shared = 0;
  size_t every = 0, most = 0, far = 0;
  std::vector<uint64_t> all, first, last;
  int bytes[kKinds] = {};
  for (const auto& [begin, end] : spans) {
    const std::vector<Word> words = words_of(options, text + begin, end - begin);
    const std::vector<uint64_t> own = distinct(words);
    const double long_as = double(end - begin);
    length += long_as, squares += long_as * long_as, sets += double(own.size());
    every += words.size(), most = std::max(most, words.size()), far += size_t(long_words(words));
    for (size_t i = begin; i < end; i++) bytes[options.kind_of[text[i]]]++;
    for (const Word& word : words) letters += word.length;
    with_digits += std::any_of(words.begin(), words.end(), [](const Word& word) { return word.has_digit; });
    of_numbers += !words.empty() && std::all_of(words.begin(), words.end(), [](const Word& w) { return w.digits_only; });
    const auto among = [&](const std::vector<uint64_t>& others) {
      return std::count_if(own.begin(), own.end(),
                           [&](uint64_t hash) { return std::binary_search(others.begin(), others.end(), hash); });
    };
    negated += among(options.negations) > 0, shared += double(among(asked));
    all.insert(all.end(), own.begin(), own.end());
    if (!words.empty()) first.push_back(words.front().hash), last.push_back(words.back().hash);
  }
  const double n = double(std::max<size_t>(spans.size(), 1)), total = double(std::max<size_t>(every, 1));
  const double wide = std::max(length, 1.0), different = std::max(sets, 1.0);
  const auto [of_all, common] = occurring(all, spans.size());
  const auto put = [&](double value) { *next++ = float(value); };
  put(std::log1p(double(every) / n)), put(std::log1p(double(most)));
  put(std::sqrt(n * squares - length * length) / (length + n));
  put(length / double(std::max<size_t>(size, 1)));
  put(of_all / different), put(common / double(std::max(of_all, 1)));
  put(letters / total), put(double(far) / total);
  put(with_digits / n), put(of_numbers / n), put(bytes[kDigit] / wide), put(negated / n);
  put(occurring(first, 0).first / n), put(occurring(last, 0).first / n);
  put(bytes[kCapital] / wide);
  put((bytes[kDollar] + bytes[kOtherMaths] + bytes[kBracket] + bytes[kBackslash]) / wide);
  put(shared / different);
  return next;
}

void put_stem(const Options& options, const unsigned char* text, size_t size, const std::vector<Word>& words, float* next) {
  int numbers = 0, decimals = 0, stops = 0, capitals = 0;
  size_t begin = 0, end = size;
  while (begin < end && is_space(text[begin])) begin++;
  while (end > begin && is_space(text[end - 1])) end--;
  for (size_t i = 0, after_decimal = 0; i < size; i++) {
    const unsigned char c = text[i];
    capitals += options.kind_of[c] == kCapital;
    // Digits and ends of sentences come before it.
    if (c > '?') continue;
    numbers += is_digit(c) && (i == 0 || !is_digit(text[i - 1]));
    if (i >= after_decimal && i + 2 < size && is_digit(c) && text[i + 1] == '.' && is_digit(text[i + 2]))
      decimals++, after_decimal = i + 3;
    stops += (c == '.' || c == '?' || c == '!') && (i + 1 == size || is_space(text[i + 1]));
  }
  size_t question = begin;
  for (size_t i = begin; i < end;) {
    const unsigned char c = text[i++];
    if ((c != '.' && c != '?' && c != '!' && c != '\n') || i == end || !is_space(text[i])) continue;
    while (i < end && is_space(text[i])) i++;
    question = i;
  }
  // A question starts at a word or before one.
  const auto asking = std::find_if(words.begin(), words.end(), [&](const Word& word) { return word.begin >= question; });
  uint64_t which = kEmpty;
  for (const char c : {'w', 'h', 'i', 'c', 'h'}) which = extended(which, (unsigned char)c);
  const bool asks = std::any_of(asking, words.end(), [&](const Word& word) { return word.hash == which; });
  const auto put = [&](double value) { *next++ = float(value); };
  put(std::log1p(double(words.size()))), put(std::log1p(double(words.end() - asking))), put(asks);
  put(std::log1p(numbers)), put(std::log1p(decimals)), put(std::log1p(stops));
  put(capitals / double(std::max<size_t>(size, 1)));
  put(long_words(words) / double(std::max<size_t>(words.size(), 1)));
}

}  // namespace

// (letters of words by byte, kinds of bytes, negations parted by spaces) -> capsule.
PyObject* make_options(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 3, "make_options")) return nullptr;
  Array<unsigned char> words(values[0]), kinds(values[1]), negations(values[2]);
  if (words.failed || kinds.failed || negations.failed) return nullptr;
  if (!words.has(256, "words") || !kinds.has(256, "kinds")) return nullptr;
  if (!std::all_of(kinds.begin(), kinds.end(), [](unsigned char kind) { return kind < kKinds; }))
    return PyErr_Format(PyExc_TypeError, "make_options: a kind of bytes is unknown");
  auto* made = new Options{};
  std::copy(words.begin(), words.end(), made->word_of);
  std::copy(kinds.begin(), kinds.end(), made->kind_of);
  made->negations = distinct(words_of(*made, negations.data(), size_t(negations.size())));
  return capsule(made);
}

void put_option_features(const Options& options, const unsigned char* text, size_t size, float* out) {
  std::vector<std::pair<size_t, size_t>> spans;
  size_t stem = size;
  for (size_t i = 0; i < size; i++) {
    const void* line = memchr(text + i, '\n', size - i);
    if (!line) break;
    i = size_t(static_cast<const unsigned char*>(line) - text);
    const size_t mark = mark_at(text, size, i);
    if (!mark) continue;
    (spans.empty() ? stem : spans.back().second) = i;
    spans.emplace_back(i + mark, size);
    i += mark - 1;
  }
  const std::vector<Word> words = words_of(options, text, stem);
  const std::vector<uint64_t> asked = spans.empty() ? std::vector<uint64_t>{} : distinct(words);
  put_stem(options, text, stem, words, put_options(options, text, size, spans, asked, out));
}

}  // namespace aio

// Whether a turn surely has no material, so that it is read as it is; `classifier.features.material` is the reference.
//
// Most turns have none, which is seen in one pass. Of other turns the rules have to say: the kernel knows only lines
// that are prose or items by their first words, and of a request which words it has.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "words.h"

namespace aio {
namespace {

using Text = std::string_view;

// As in `classifier.features.material`, `line_kinds` and `pasted_prose`.
constexpr size_t kHead = 2560, kTail = 1536, kHeadLines = 20, kTailLines = 12, kLongestLine = 400, kLeastText = 160;
constexpr int kLeastCells = 3, kLeastAlike = 5, kLeastItems = 8, kLeastSpoken = 4, kFormTokens = 4;
constexpr size_t kLongestName = 32, kLeastMarked = 160, kWindow = 4096, kLookedAt = 1024, kBeginning = 240;
constexpr int kLeastProse = 40, kMostAsked = 60, kMostOnText = 25;

// Bits of words of requests, as `classifier.features.request_words.words_by_bit` has them.
enum Asked {
  kOfText = 1 << 0,
  kPoints = 1 << 1,
  kMaking = 1 << 2,
  kMyself = 1 << 3,
  kOnText = 1 << 4,
  kTask = 1 << 5,
  kSalutes = 1 << 6,
  kDoing = 1 << 7,
};
// What a first word says of its line: that it may be of a program or a log, or may where such marks follow.
enum Opening { kMayBe = 1, kMayBeWithMarks = 2 };
// What stands for a character beyond ASCII: a letter, a mark, and the quotation marks that open and close.
constexpr char kLetter = char(0x80), kMark = char(0x81), kOpens = char(0x82), kCloses = char(0x83);

struct Stem {
  std::string text;
  bool more;  // whether a letter has to follow
  int asked;
};

struct MaterialRules {
  static constexpr const char* kName = "classifier.material";
  WordTable words, openings;
  std::vector<Stem> stems[256];  // by their first byte
};

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_of_word(char c) { return is_letter(c) || is_digit(c) || c == '_' || c == kLetter; }
bool is_any(char c, const char* of) { return std::strchr(of, c) && c; }
char low(char c) { return char(c | (c >= 'A' && c <= 'Z' ? 32 : 0)); }

Text stripped(Text text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}
Text part(Text text, size_t from, size_t end) { return text.substr(std::min(from, text.size()), end - from); }
size_t run(Text text, size_t at, bool (*is)(char)) {
  const size_t from = at;
  while (at < text.size() && is(text[at])) at++;
  return at - from;
}

// Characters beyond ASCII that are as one of ASCII where case is ignored, or marks of the rules.
constexpr Py_UCS4 kSpecial[] = {0x130, 0x131, 0x17f, 0x212a, 0xab, 0xbb, 0x201e,
                                0x300c, 0x300d, 0x300e, 0x300f, 0xff1a, 0xff1f, 0x61f};

// A byte for a character; 0 for one that the kernel does not know: special ones, digits beyond ASCII, and letters of
// scripts that the rules have words in.
char byte_of(Py_UCS4 c) {
  if (c < 128) return c == 0x1e ? 0 : char(c);
  if (c == 0x201c || c == 0x201d) return c == 0x201c ? kOpens : kCloses;
  if (std::find(std::begin(kSpecial), std::end(kSpecial), c) != std::end(kSpecial)) return 0;
  if (Py_UNICODE_ISSPACE(c)) return '\v';
  if (!Py_UNICODE_ISALNUM(c)) return kMark;
  if (!Py_UNICODE_ISALPHA(c)) return Py_UNICODE_ISDECIMAL(c) ? 0 : '_';
  const auto within = [&](Py_UCS4 first, Py_UCS4 end) { return c >= first && c < end; };
  const bool known = within(0, 0x400) || within(0x1e00, 0x2000) || within(0x2100, 0x2150) || within(0xfb00, 0xfb07);
  return known ? kLetter : 0;
}

enum Kind { kProse, kBlank, kList, kGap, kUnsure };
struct Line {
  Text text;
  size_t start;
  Kind kind;
  size_t end() const { return start + text.size(); }
};

bool ends_as_code(Text text) {
  for (const Text end : {"{", "};", ");", "],", "),", "->", "=>", "&&", "||"})
    if (text.size() >= end.size() && text.substr(text.size() - end.size()) == end) return true;
  return false;
}

// Whether an assignment may follow what a line begins with up to `at`, with which no word of it ends.
bool may_assign(Text text, size_t at) {
  if (at < text.size() && text[at] == ',') return text.find('=') != text.npos || text.find("<-") != text.npos;
  if (at < text.size() && is_space(text[at])) at++;
  return at < text.size() && is_any(text[at], "-+*/:|&=<");
}

// Of a line whose first word, after marks, says nothing of a log.
Kind kind_by_word(const MaterialRules& rules, Text text) {
  const int opening = rules.openings.find(hash_of(text.substr(0, run(text, 0, is_of_word))), 0);
  if (opening & kMayBe || (opening & kMayBeWithMarks && text.find_first_of("(){:;=") != text.npos)) return kUnsure;
  const auto is_of_name = [](char c) { return is_of_word(c) || is_any(c, ".[]\"'>-"); };
  const size_t end = run(text, 0, is_of_name);
  const Text name = text.substr(0, end);
  const bool is_error = name.find("Error") != name.npos || name.find("Exception") != name.npos;
  if (end == text.size()) return is_error || !is_letter(low(name[0])) ? kUnsure : kProse;
  if (text[end] == ':' && name[0] >= 'A' && name[0] <= 'Z' && (end + 1 == text.size() || is_space(text[end + 1])))
    return is_error ? kUnsure : kProse;
  if (may_assign(text, end)) return kUnsure;
  if (text[end] == '(') return is_any(text.back(), ");,{") ? kUnsure : kProse;
  return is_space(text[end]) || is_any(text[end], ",;!?)%") || text[end] == kMark ? kProse : kUnsure;
}

// Of a line that begins with a mark and a letter.
Kind kind_by_mark(const MaterialRules& rules, Text text) {
  const size_t end = 1 + run(text, 1, is_of_word);
  if (rules.openings.find(hash_of(text.substr(1, end - 1)), 0)) return kUnsure;
  const auto is_after = [&](size_t at, char c) {
    if (at < text.size() && is_space(text[at])) at++;
    return at < text.size() && text[at] == c;
  };
  switch (text[0]) {
    case '$': return is_after(end, '=') ? kUnsure : kProse;
    case '"':
      return is_after(std::min(text.find('"', 1), text.size() - 1) + 1, ':') ? kUnsure : kind_by_word(rules, text);
    case '[':
    case '\'': return kind_by_word(rules, text);
    default: return is_any(text[0], "(\\~") || text[0] == kMark || text[0] == kOpens ? kProse : kUnsure;
  }
}

// Of a line that begins with digits, after a bracket perhaps: an item, unless what follows may make a date of them.
Kind kind_by_digits(const MaterialRules& rules, Text text, size_t bracket, size_t digits) {
  const size_t end = bracket + digits;
  if (end + 1 < text.size() && is_any(text[end], ".)") && text[end + 1] == ' ')
    return may_assign(text, end + 1) ? kUnsure : digits <= 2 ? kList : bracket ? kUnsure : kProse;
  if (bracket || end == text.size() || !(is_space(text[end]) || is_of_word(text[end]))) return kUnsure;
  return kind_by_word(rules, text);
}

// The kind of the line `whole` where it is prose, blank or an item without doubt.
Kind kind_of(const MaterialRules& rules, Text whole) {
  const Text text = stripped(whole.substr(0, kLongestLine));
  if (text.empty()) return kBlank;
  const char first = text[0];
  const size_t at = first == '(';  // of what may be in brackets
  const auto has = [&](size_t i, bool (*is)(char)) { return i < text.size() && is(text[i]); };
  const auto spaced = [&](size_t i) { return i < text.size() && text[i] == ' '; };
  const auto is_option = [](char c) { return low(c) >= 'a' && low(c) <= 'j'; };
  const auto is_end_of_number = [](char c) { return c == '.' || c == ')'; };
  if (has(at, is_option) && has(at + 1, is_end_of_number) && spaced(at + 2)) return kList;
  Kind kind = kUnsure;
  const size_t digits = run(text, at, is_digit), hashes = first == '#' ? text.find_first_not_of('#') : 0;
  if (digits) {
    kind = kind_by_digits(rules, text, at, digits);
  } else if ((is_any(first, "*+") && spaced(1)) || (hashes && hashes <= 6 && spaced(hashes))) {
    kind = kList;
  } else if (first == '-' && spaced(1)) {
    const size_t word = run(text, 2, [](char c) { return is_of_word(c) || is_any(c, ".-"); });
    if (word && !may_assign(text, 1) && !(2 + word < text.size() && text[2 + word] == ':')) kind = kList;
  } else if (is_letter(first) || first == kLetter || first == '_') {
    kind = kind_by_word(rules, text);
  } else if (has(1, is_letter) || (first == '$' && has(1 + run(text, 1, is_digit), is_space))) {
    kind = kind_by_mark(rules, text);
  }
  return ends_as_code(text) ? kUnsure : kind;
}

// The lines of the turn's ends with their kinds, as `_lines_of`; none where a kind is in doubt.
std::vector<Line> lines_of(const MaterialRules& rules, Text text) {
  std::vector<Line> lines;
  bool sure = true;
  const auto add = [&](size_t from, size_t end) {
    lines.push_back({text.substr(from, end - from), from, kind_of(rules, text.substr(from, end - from))});
    sure &= lines.back().kind != kUnsure;
  };
  // The lines of text[from:end], at most so many; what follows the last of them is left.
  const auto add_first = [&](size_t from, size_t end, size_t most, bool cut) {
    for (; most && sure; most--) {
      const size_t next = text.find('\n', from);
      if (next >= end) {
        if (!cut) add(from, end);
        return;
      }
      add(from, next), from = next + 1;
    }
  };
  const size_t size = text.size();
  const bool whole = size <= kHead + kTail;
  if (whole && size_t(std::count(text.begin(), text.end(), '\n')) < kHeadLines + kTailLines) {
    add_first(0, size, kHeadLines + kTailLines, false);
    return sure ? lines : std::vector<Line>{};
  }
  const size_t head = whole ? size : kHead, from = whole ? 0 : size - kTail;
  const bool one_line = !whole && text.substr(0, head).find('\n') == text.npos;
  add_first(0, head, kHeadLines, !one_line);
  // Where the last lines begin: the first of what is cut from the turn's end is no whole one.
  size_t begin = size;
  for (size_t found = 0; found < kTailLines; found++) {
    const size_t before = begin ? text.rfind('\n', begin - 1) : text.npos;
    if (before == text.npos || before < from) break;
    begin = before;
  }
  begin = std::min(begin + 1, size);
  if (!whole && text.substr(from).find('\n') == text.npos) begin = from;
  if (!sure) return {};
  const size_t gap = lines.back().end();
  lines.push_back({Text{}, std::min(gap, size), kGap});
  add_first(begin, size, kTailLines, false);
  return sure ? lines : std::vector<Line>{};
}

// Whether a line may be a row of a table, as `separator_of`.
bool has_cells(Text line) {
  if (line.size() > kLongestLine || line.empty()) return false;
  const auto count = [&](char c) { return size_t(std::count(line.begin(), line.end(), c)); };
  const auto has = [&](Text one) { return line.find(one) != line.npos; };
  if (has("|") || has("\t")) return true;
  const size_t commas = count(','), semicolons = count(';');
  if (semicolons && line.back() != ';' && !has("; ")) return true;
  if (commas && !has(", ") && (commas > 1 || line.back() != ',')) return true;
  const bool is_short = commas > 1 && line.size() < 24 * (commas + 1);
  if (is_short && !is_any(line.back(), ".!?:,") && !has(":") && !has("[")) return true;
  if (!has("  ")) return false;
  size_t cells = 0, letters = 0;
  for (size_t at = 0; at <= line.size();) {
    const size_t end = std::min(line.find("  ", at), line.size());
    if (const Text cell = line.substr(at, end - at); !stripped(cell).empty()) cells++, letters += cell.size();
    at = end + 2;
  }
  return cells > 2 && letters > 2 * cells;
}

// The form of a line's first words by its hash, 0 for none, as `form_of`.
uint64_t form_of(Text line) {
  line = line.substr(0, kLongestLine);
  uint64_t form = kNoLetters;
  bool of_program = false, is_item = false;
  size_t at = 0;
  for (int token = 0; token < kFormTokens; token++) {
    at += run(line, at, is_space);
    const Text word = line.substr(at, run(line, at, [](char c) { return !is_space(c); }));
    if (word.empty()) break;
    at += word.size();
    if (!token) {
      const size_t in = word[0] == '(';
      const bool closed = word.size() == in + 2 && is_any(word[in + 1], ".)");
      if (closed && low(word[in]) >= 'a' && low(word[in]) <= 'j') return 0;
      const Text number = word.substr(0, word.size() - 1);
      is_item = (word.size() == 1 && is_any(word[0], "-*+")) ||
                (is_any(word.back(), ".)") && !number.empty() && run(number, 0, is_digit) == number.size());
    }
    const bool counts = token || !is_item;
    for (size_t i = 0; i < word.size();) {
      const size_t length = run(word, i, is_of_word);
      char mark = word[i];
      if (length) {
        const Text letters = word.substr(i, length);
        const auto is_alpha = [](char c) { return is_letter(c) || c == kLetter; };
        mark = std::all_of(letters.begin(), letters.end(), is_alpha) ? 'a' : '0';
      }
      of_program |= counts && is_any(mark, "0/\\=@#|<>{}%");
      form = with_letter(form, (unsigned char)mark), i += std::max<size_t>(length, 1);
    }
    form = with_letter(form, ' ');
  }
  return of_program ? form : 0;
}

// Whether lines that are prose or items by themselves may be a table, of one form, or a dialogue, as `_structured`.
bool may_be_structured(const std::vector<Line>& lines) {
  int rows = 0, alike = 0, spoken = 0;
  uint64_t form = 0;
  bool items = false;  // whether all lines of that form are
  for (const Line& line : lines) {
    const bool prose = line.kind == kProse;
    rows = line.kind == kGap || (prose && has_cells(line.text)) ? rows + 1 : 0;
    if (line.kind == kGap) {
      alike += alike > 0;
    } else {
      const uint64_t own = line.kind == kBlank ? 0 : form_of(line.text);
      const bool goes_on = own && own == form, is_item = line.kind == kList;
      items = is_item && (items || !goes_on), alike = goes_on ? alike + 1 : own != 0, form = own;
    }
    spoken += prose && line.text.substr(0, kLongestName).find(':') != Text::npos;
    if (rows >= kLeastCells || alike >= (items ? kLeastItems : kLeastAlike)) return true;
  }
  return spoken >= kLeastSpoken;
}

// Which words a text has, of those that say what is asked.
int asked_in(const MaterialRules& rules, Text text) {
  int asked = 0;
  char word[64];
  for (size_t at = 0; at < text.size(); at++) {
    if (!is_of_word(text[at])) continue;
    const size_t length = run(text, at, is_of_word), kept = std::min(length, sizeof word);
    std::transform(text.begin() + at, text.begin() + at + kept, word, low);
    if (kept == length) asked |= rules.words.find(hash_of({word, kept}), 0);
    for (const Stem& stem : rules.stems[(unsigned char)word[0]])
      if (kept >= stem.text.size() + stem.more && !stem.text.compare(0, stem.text.npos, word, stem.text.size()))
        asked |= stem.asked;
    at += length;
  }
  return asked;
}

struct Paragraph {
  size_t start, end;
  int words;
  bool lists;
};

// The paragraphs, as `_paragraphs` where no line is a fence.
std::vector<Paragraph> paragraphs_of(const std::vector<Line>& lines) {
  std::vector<Paragraph> found;
  bool open = false;
  for (const Line& line : lines) {
    if (line.kind == kBlank) {
      open = false;
      continue;
    }
    if (!open) found.push_back({line.start, line.start, 0, false});
    open = true;
    Paragraph& last = found.back();
    last.words += line.kind == kGap ? kLeastProse : 1 + int(std::count(line.text.begin(), line.text.end(), ' '));
    last.end = line.end(), last.lists |= line.kind == kList;
  }
  return found;
}

// Whether `rest` may be what the request in `paragraph` is about, as `_about`.
bool may_be_about(const MaterialRules& rules, Text text, const Paragraph& paragraph, const Paragraph* rest,
                  size_t count) {
  int words = 0;
  bool lists = false;
  for (size_t i = 0; i < count; i++) words += rest[i].words, lists |= rest[i].lists;
  if (paragraph.words > kMostAsked || words < kLeastProse) return false;
  const Text request = stripped(part(text, paragraph.start, paragraph.end));
  const int asked = asked_in(rules, request);
  if (asked & kTask) return false;
  const bool is_long = words >= 2 * kLeastProse;
  if (paragraph.words <= kMostOnText && asked & kOnText && is_long) return true;
  if (lists) return false;
  const size_t start = rest[0].start;
  const Text content = part(text, start, std::min(rest[count - 1].end, start + kLookedAt));
  const Text opening = stripped(content);
  if (asked_in(rules, opening.substr(0, run(opening, 0, is_of_word))) & kSalutes && content.find('\n') != content.npos)
    return true;
  const bool points = asked & kPoints;
  if (content.find('?') != content.npos || (asked & kMaking && !points)) return false;
  const int beginning = asked_in(rules, content.substr(0, kBeginning));
  if (asked_in(rules, content) & kDoing || beginning & kMaking) return false;
  if (asked & kOfText) return true;
  const bool asks = points || request.find('?') != request.npos || (!request.empty() && request.back() == ':');
  return asks && paragraph.start < start && is_long && !(beginning & kMyself);
}

// Whether lines between quotation marks may be a material, as `_marked` where no line is a fence or data.
bool may_be_quoted(const std::vector<Line>& lines) {
  for (size_t at = 0; at < lines.size(); at++) {
    const Text text = stripped(lines[at].text);
    if (lines[at].kind != kProse || (text[0] != '"' && text[0] != kOpens)) continue;
    for (size_t place = lines.size(); place-- > at;) {
      const size_t last = lines[place].text.find_last_not_of(" .");
      if (last == Text::npos || lines[place].text[last] != (text[0] == '"' ? '"' : kCloses)) continue;
      if (lines[place].end() - lines[at].start >= kLeastMarked) return true;
      break;
    }
  }
  return false;
}

// Whether a request may lead to prose or follow it, as `prose_in`.
bool may_have_prose(const MaterialRules& rules, Text text, const std::vector<Line>& lines) {
  const std::vector<Paragraph> all = paragraphs_of(lines);
  if (all.size() < 2) return false;
  return may_be_about(rules, text, all.front(), &all[1], all.size() - 1) ||
         may_be_about(rules, text, all.back(), &all[0], all.size() - 1);
}

// Whether a quotation, a JSON value or what follows a colon may be a material, as `material_in_one_line`.
bool may_be_in_a_line(const MaterialRules& rules, Text text) {
  const Text window = text.substr(0, kWindow);
  for (size_t at = window.find_first_of("\"{\x82"); at != window.npos; at = window.find_first_of("\"{\x82", at + 1)) {
    const size_t next = at + 1;
    if (window[at] == '{') {
      const size_t inner = next + (next < text.size() && is_space(text[next]));
      if (inner < text.size() && text[inner] == '"') return true;
    } else if (next < text.size() && !is_space(text[next]) && (!at || is_space(text[at - 1]) || text[at - 1] == '(')) {
      const size_t end = part(text, next, next + kWindow).find(window[at] == '"' ? '"' : kCloses);
      if (end == text.npos || 1 + end >= kLeastMarked) return true;
    }
  }
  const size_t colon = window.find(": ");
  if (colon == window.npos || text.find('\n') != text.npos) return false;
  return asked_in(rules, text.substr(0, colon + 1)) & kOnText;
}

bool has_none(const MaterialRules& rules, Text text) {
  const std::vector<Line> lines = lines_of(rules, text);
  return !lines.empty() && !may_be_quoted(lines) && !may_be_structured(lines) &&
         !(text.size() > kLeastText && may_have_prose(rules, text, lines)) && !may_be_in_a_line(rules, text);
}

// A text as its bytes by `byte_of`; empty where one is not known.
std::string bytes_of(PyObject* text) {
  const Py_ssize_t size = PyUnicode_GET_LENGTH(text);
  const int kind = PyUnicode_KIND(text);
  const void* data = PyUnicode_DATA(text);
  std::string bytes(size_t(size), 0);
  bool known = true;
  for (Py_ssize_t i = 0; i < size; i++) known &= (bytes[size_t(i)] = byte_of(PyUnicode_READ(kind, data, i))) != 0;
  return known ? bytes : std::string{};
}

}  // namespace

// (word of a request -> its bits of `Asked`, where one may end in "*" or "+"; first word of a line -> its `Opening`)
// -> capsule. Words with characters that the kernel does not know are left out: no turn that it knows has them.
PyObject* make_material(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 2, "make_material")) return nullptr;
  if (!PyDict_Check(values[0]) || !PyDict_Check(values[1]))
    return PyErr_Format(PyExc_TypeError, "make_material takes dicts of words");
  auto made = std::make_unique<MaterialRules>();
  made->words.clear(size_t(PyDict_GET_SIZE(values[0])));
  PyObject *key, *number;
  for (Py_ssize_t at = 0; PyDict_Next(values[0], &at, &key, &number);) {
    const long asked = PyLong_AsLong(number);
    if (PyErr_Occurred()) return nullptr;
    if (!PyUnicode_Check(key)) return PyErr_Format(PyExc_TypeError, "make_material takes dicts of words");
    std::string word = bytes_of(key);
    if (word.empty()) continue;
    const char last = word.back();
    if (last != '*' && last != '+') {
      made->words.add(hash_of(word), int32_t(asked));
      continue;
    }
    word.pop_back();
    if (!word.empty()) made->stems[(unsigned char)word[0]].push_back({word, last == '+', int(asked)});
  }
  if (!made->openings.fill(values[1])) return nullptr;
  return capsule(made.release());
}

// (rules, a turn) -> whether it surely has no material.
PyObject* has_no_material(PyObject*, Values values, Py_ssize_t count) {
  if (!expect(count, 2, "has_no_material")) return nullptr;
  const MaterialRules* rules = held<MaterialRules>(values[0]);
  if (!rules) return nullptr;
  if (!PyUnicode_Check(values[1])) return PyErr_Format(PyExc_TypeError, "has_no_material takes a text");
  const std::string text = bytes_of(values[1]);
  return PyBool_FromLong(!text.empty() && has_none(*rules, text));
}

}  // namespace aio

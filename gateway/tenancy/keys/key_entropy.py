"""Entropy of a key that a person chose, estimated from the key alone: independent characters times bits of each.

No estimate can tell a random key from one that was published; this one finds short keys, small alphabets, repetition,
sequences and words. Keys of usual generators pass: 32 random hexadecimal digits, 22 of base64 or letters and digits.
"""

import math
import re

NEEDED_BITS = 128

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_UUID_BITS = 122
# Words in front that say what a key is for: `sk-aio-…`, `prod_api_key_…`.
_LABELS = re.compile(
    r"(?:(?:sk|pk|key|api|aio|admin|token|secret|live|prod|dev|test|user|app|my|proj)[-_.])+", re.IGNORECASE
)
_HEX = re.compile(r"[0-9a-f]+|[0-9A-F]+")
_KEYBOARD = "qwertyuiopasdfghjklzxcvbnm 1qaz2wsx3edc4rfv5tgb6yhn7ujm qazwsxedcrfvtgbyhnujm 1234567890 0987654321"
# So many characters continue a pattern by chance.
_BY_CHANCE = 4
# The most frequent pairs of letters in English words: 62% of their pairs, and 11% of random ones.
_PAIRS = (
    "er_re_in_es_ed_te_ti_or_en_on_at_st_de_le_ro_ng_nt_se_co_ra_an_ar_li_al_io_me_ce_la_ne_et_it_ve_ns_ec_lo_ri_ta_tr_"
    "ea_is_ge_pe_ch_ic_un_as_ca_el_he_ac_to_pr_nd_ma_ts_ad_ct_rs_si_ou_di_th_po_om_ol_ll_em_ss_ha_sh"
)
_RANDOM_SHARE, _DEVIATIONS, _FEWEST_PAIRS = 0.12, 4.5, 10
_SEPARATE_WORD, _FEWEST_WORDS = re.compile(r"(?<![A-Za-z0-9])(?:[A-Z]?[a-z]{2,}|[A-Z]{3,})(?![A-Za-z0-9])"), 3
_BITS_OF_A_LETTER_IN_WORDS = 2.0


def entropy_bits(key: str) -> float:
    """Return about how many bits of entropy a key has.

    A character counts with the logarithm of the alphabet that the key is written in, or with two bits as a letter of a
    text with words, and with none where it repeats earlier ones or continues a sequence. A UUID has 122 bits.
    """
    text, uuids = _UUID.subn("", key)
    if label := _LABELS.match(text):
        text = text[label.end() :]
    if not text:
        return uuids * _UUID_BITS
    if _has_words(text):
        others = re.sub("[A-Za-z]", "", text)
        total = (len(text) - len(others)) * _BITS_OF_A_LETTER_IN_WORDS + len(others) * _bits_of_a_character(others)
    else:
        total = len(text) * _bits_of_a_character(text)
    independent = len(text) - max(0, _continued(text) - _BY_CHANCE)
    return uuids * _UUID_BITS + total * independent / len(text)


def _bits_of_a_character(text: str) -> float:
    """The logarithm of the alphabet; of a part of it, if far fewer characters occur than would by chance."""
    distinct = len(set(text))
    if distinct < 2:
        return 0.0
    if _HEX.fullmatch(text):
        size = 16 if re.search("[a-fA-F]", text) else 10
    else:
        others = len(set(re.sub("[0-9a-zA-Z]", "", text)))
        size = others if others < 4 else max(others, 32)
        size += sum(of for of, members in ((26, "a-z"), (26, "A-Z")) if re.search(f"[{members}]", text))
        # Of letters in both cases the digits may be missing by chance.
        size += 10 if size >= 52 or re.search("[0-9]", text) else 0
    expected = size * (1 - (1 - 1 / size) ** len(text))
    return math.log2(size if distinct > expected / 2 else distinct)


def _continued(text: str) -> int:
    """Return how many characters end a repeated three, or continue a sequence such as `abc`, `321`, `1a2b3c`, `qwe`."""
    folded = text.lower()
    codes = [ord(character) for character in folded]
    return sum(
        text[at - 2 : at + 1] in text[:at]
        or folded[at - 2 : at + 1] in _KEYBOARD
        or any(
            abs(codes[at] - codes[at - stride]) <= 1
            and codes[at] - codes[at - stride] == codes[at - stride] - codes[at - 2 * stride]
            for stride in (1, 2)
            if at >= 2 * stride
        )
        for at in range(2, len(text))
    )


def _has_words(text: str) -> bool:
    """Whether half of it is words between separators, or more of its letters than by chance are in pairs of English."""
    if _HEX.fullmatch(text):
        return False
    separate = _SEPARATE_WORD.findall(text)
    if len(separate) >= _FEWEST_WORDS and 2 * sum(map(len, separate)) >= len(text):
        return True
    words = re.findall("[A-Z]?[a-z]{2,}|[A-Z]{3,}", text)
    pairs = [word[at : at + 2].lower() for word in words for at in range(len(word) - 1)]
    deviation = math.sqrt(len(pairs) * _RANDOM_SHARE * (1 - _RANDOM_SHARE))
    known = sum(pair in _PAIRS for pair in pairs)
    return len(pairs) >= _FEWEST_PAIRS and known > len(pairs) * _RANDOM_SHARE + _DEVIATIONS * deviation

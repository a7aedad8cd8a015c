"""Chat templates drawn at random from what makes, repeats, compares and prints values."""

from random import Random

_COUNTS = ("0", "1", "7", "60", "1000", "99999", "10**9", "-1", "messages|length", "x|length", "1.5", "none")
_TEXTS = ("'a'", "x", "ns.x", "messages[0].content", "'ab\\n' * 50", "''", "'%s%s'", "'{0}{0}'", "bos_token", "nothing")
_LISTS = ("messages", "range(60)", "range(99999)", "[x, x]", "[ns.x]", "x", "ns.x", "[1, 'a', none]", "{'a': x}", "()")
_FILTERS = (
    "upper", "list", "string", "length", "reverse", "tojson", "trim", "sort", "unique|list", "first", "join(x)", "e",
    "center({n})", "indent({n})", "wordwrap({n})", "batch({n}, x)|list", "slice({n})|list", "replace('a', x)", "title",
    "truncate({n})", "map('upper')|list", "select|list", "groupby(0)|list", "sum", "urlize", "pprint", "xmlattr",
    "round({n})", "tojson(indent={n})", "format(x, x)", "items|list", "dictsort", "striptags", "filesizeformat",
)  # fmt: skip
_METHODS = (
    "split(x)", "replace('a', x)", "center({n})", "zfill({n})", "format(x)", "join([x, x])", "expandtabs({n})",
    "splitlines()", "encode()", "items()", "copy()", "index(x)", "count(x)", "partition('a')", "__class__", "append(x)",
)  # fmt: skip
_JOINED = ("{a} + {b}", "{a} ~ {b}", "{a} * {n}", "{a} % {b}", "[{a}, {b}]", "{a} == {b}", "{a} in {b}", "{a}[::-1]")


def _value(draw: Random, depth: int) -> str:
    if depth == 0:
        return draw.choice((*_TEXTS, *_LISTS, *_COUNTS))
    inner, number = _value(draw, depth - 1), draw.choice(_COUNTS)
    kind = draw.randrange(4)
    if kind == 0:
        return f"({inner})|{draw.choice(_FILTERS)}".replace("{n}", number)
    if kind == 1:
        return f"({inner}).{draw.choice(_METHODS)}".replace("{n}", number)
    joined = draw.choice(_JOINED).replace("{a}", f"({inner})").replace("{b}", f"({_value(draw, depth - 1)})")
    return joined.replace("{n}", number)


def drawn_template(draw: Random, depth: int = 3) -> str:
    """The source of a template; most of them are valid."""
    value = _value(draw, draw.randint(0, 3))
    if depth == 0:
        return draw.choice((f"{{{{ {value} }}}}", f"{{% set ns.x = {value} %}}", f"{{% set x = {value} %}}"))
    body = "".join(drawn_template(draw, depth - 1) for _ in range(draw.randint(1, 2)))
    around = draw.choice((
        "{% for i in LIST %}BODY{% endfor %}", "{% for i in LIST if VALUE %}BODY{% else %}x{% endfor %}",
        "{% if VALUE %}BODY{% else %}{{ VALUE }}{% endif %}", "{% set x %}BODY{% endset %}{{ x }}BODY",
        "{% macro m(x) %}BODY{% endmacro %}{{ m(VALUE) }}{{ m(m(x)) }}", "{% filter upper %}BODY{% endfilter %}",
        "{% with x = VALUE %}BODY{% endwith %}", "{% autoescape true %}BODY{% endautoescape %}",
        "{% generation %}BODY{% endgeneration %}", "{% call(v) m2() %}BODY{% endcall %}", "BODY",
        "{% macro m2() %}BODY{{ caller(x) }}{% endmacro %}BODY", "{% block b %}BODY{% endblock %}",
    ))  # fmt: skip
    source = around.replace("BODY", body).replace("LIST", draw.choice(_LISTS)).replace("VALUE", value)
    return "{% set ns = namespace(x='aa') %}{% set x = 'ab' %}" + source if depth == 3 else source

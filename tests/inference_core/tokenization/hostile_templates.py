"""Chat templates whose work their size does not bound, by name: what they double, repeat, pad or nest."""


def _grown(step: str, start: str = "'aa'", shown: str = "") -> str:
    """A value that `step` makes of itself, sixty times."""
    loop = f"{{% for i in range(60) %}}{step}{{% endfor %}}"
    return f"{{% set ns = namespace(x={start}) %}}{loop}{shown}"


def _set(expression: str, start: str = "'aa'", shown: str = "") -> str:
    return _grown(f"{{% set ns.x = {expression} %}}", start, shown)


def _again(body: str, first: str = "") -> str:
    return f"{first}{{% for i in range(100000) %}}{body}{{% endfor %}}"


_LONG, _LIST = "{% set x = 'a' * 400000 %}", "{% set x = range(100000)|list %}"

WORK: dict[str, str] = {
    # Made at once.
    **{
        f"of {expression}": f"{{% set x = {expression} %}}"
        for expression in (
            "'a' * 10**9", "10**9 * 'a'", "[0] * 10**9", "(1,) * 10**9", "('a' * 1000 * 1000 * 1000)|length",
            "'a'|center(10**9)", "'a'.center(10**9)", "'a'.ljust(10**9)", "'1'.zfill(10**9)",
            "('a\\n' * 1000)|indent(10**7)", "('\\n' * 10000)|indent('a' * 10000)", "'a'|indent(10**9, true)",
            "range(100000)|join('a' * 100000)", "[1]|batch(10**9, 0)|list", "[1]|slice(10**9)|list",
            "[[1]]|tojson(indent=10**9)", "[[1]]|tojson(indent='a' * 400000)", "'\\t'.expandtabs(10**9)",
            "(range(1000)|list)|tojson(separators=(',' * 400000, ':'))",
            "([[1, 2, 3]] * 50000)|sum(start=[])", "('%(a)s' * 10000) % {'a': 'a' * 40000}",
            "('{0}' * 10000).format('a' * 40000)", "[{'a': 'b' * 40000}] * 40000",
        )
    },
    # Doubled.
    **{
        f"doubled by {expression}": _set(expression)
        for expression in (
            "ns.x + ns.x", "ns.x ~ ns.x", "[ns.x, ns.x]|join", "''.join([ns.x, ns.x])", "'%s%s' % (ns.x, ns.x)",
            "'%s%s'|format(ns.x, ns.x)", "'{}{}'.format(ns.x, ns.x)", "ns.x.replace('a', 'aa')",
            "ns.x|replace('a', 'aa')", "ns.x * 2",
        )
    },
    "doubled by a set block": _grown("{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"),
    "doubled by a filter block": _grown(
        "{% set y %}{% filter upper %}{{ ns.x }}{{ ns.x }}{% endfilter %}{% endset %}{% set ns.x = y %}"
    ),
    "doubled under autoescape": "{% autoescape true %}" + _set("ns.x ~ ns.x|string") + "{% endautoescape %}",
    "computed by autoescape": "{% autoescape 'a' * 10**9 %}{% endautoescape %}",
    # Containers that hold another twice: small until they are written out or compared.
    "a tree of lists": _set("[ns.x, ns.x]", "[1]", "{{ ns.x }}"),
    "a tree of lists as JSON": _set("[ns.x, ns.x]", "[1]", "{{ ns.x|tojson }}"),
    "a tree of tuples": _set("(ns.x, ns.x)", "[1]", "{{ ns.x|string }}"),
    "a tree of tables": _set("{'a': ns.x, 'b': ns.x}", "[1]", "{{ ns.x|tojson }}"),
    "a tree of dict()": _set("dict(a=ns.x, b=ns.x)", "[1]", "{{ ns.x ~ '' }}"),
    "a tree of views": _set("[{'a': ns.x}.values(), {'a': ns.x}.values()]", "[1]", "{{ ns.x }}"),
    "a tree of batches": _set("[ns.x]|batch(1000, ns.x)|list", "[1]", "{{ ns.x }}"),
    "a tree of groups": _set("([ns.x, ns.x]|groupby(0))|list", "[[1, 2]]", "{{ ns.x }}"),
    "a list added to itself": _set("ns.x + ns.x", "[1]"),
    "compared trees": "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    "a tree of arguments": "{% macro m(n) %}{% if n > 0 %}{{ m(n - 1, varargs, varargs) }}{% else %}{{ varargs }}"
    "{% endif %}{% endmacro %}{{ m(40, 1, 1) }}",
    "a tree of named arguments": "{% macro m(n) %}{% if n > 0 %}{{ m(n - 1, a=kwargs, b=kwargs) }}{% else %}"
    "{{ kwargs }}{% endif %}{% endmacro %}{{ m(40, a=1, b=1) }}",
    # Repeated.
    "nested loops": _again(_again(_again(""))),
    "a loop that leaves everything out": _again("{% for b in range(100000) if b < 0 %}{% endfor %}"),
    "a macro that calls itself twice": "{% macro m(n) %}{% if n > 0 %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
    "a call block in a loop": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}"
    + _again("{% call m() %}{{ 'a' * 4000 }}{% endcall %}"),
    "a long output": _again("{{ x }}", _LONG),
    "lengths of loops": _again(_again("{{ loop.length }}")),
    **{
        f"again {expression}": _again(f"{{% set y = {expression} %}}", first)
        for first, expression in (
            ("", "range(100000)|select('lt', 0)|first"), ("", "range(100000)|map('abs')|map('string')|list"),
            ("", "{}.fromkeys(range(100000), 1)"), ("", "range(100000)|unique|list"), ("", "cycler(*range(100000))"),
            (_LONG, "x[1:]"), (_LONG, "x|upper"), (_LONG, "x.split('b')"), (_LONG, "x|e"), (_LONG, "x|trim"),
            (_LONG, "x.strip()"), (_LONG, "'b' in x"), (_LONG, "x|wordcount"), (_LONG, "x.count('b')"),
            (_LIST, "x[::-1]"), (_LIST, "'b' in x"), (_LIST, "x|sort"), (_LIST, "x|max"), (_LIST, "x + x"),
            (_LIST, "x|list"), (_LIST, "x|tojson"), (_LIST, "x == range(100000)|list"),
        )
    },
}  # fmt: skip
"""More work than any chat allows for."""

REFUSED: tuple[str, ...] = (
    "{{ '%1000000000d' % 1 }}", "{{ '%*d' % (1000000000, 1) }}", "{{ '%.999999999f' % 1.0 }}",
    "{{ '%((a))99999999d' % {'(a)': 1} }}", "{{ '{:1000000000}'.format(1) }}", "{{ '{:{}}'.format(1, 1000000000) }}",
    "{{ '{a:999999999}'.format_map({'a': 1}) }}", "{{ '%1000000000d'|format(1) }}", "{{ 5|round(-10**8) }}",
    "{{ 5|round(10**8, 'ceil') }}", "{{ (10**70)**(10**70) }}", "{{ (5).to_bytes(10**9, 'big') }}",
    "{{ 'a'.encode().center(10**9) }}", "{{ 'a'.translate({97: 'b'}) }}", "{{ lipsum(100000) }}",
    "{{ strftime_now('%9999999d' * 10000) }}", "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}",
    "{% for x in [[1], [2]] recursive %}{{ loop([x, x]) }}{% endfor %}",
    _set("ns.x * ns.x", "3"),
)  # fmt: skip
"""What a template may not do at all."""

UNREADABLE: dict[str, str] = {
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "lists": "{{ " + "[" * 5000 + "]" * 5000 + " }}",
    "conditions": "{% if 1 %}" * 1200 + "{% endif %}" * 1200,
    "loops": "{% for a in b %}" * 300 + "{% endfor %}" * 300,
    "signs": "{{ " + "-" * 5000 + "1 }}",
    "sums": "{{ 1" + "+1" * 5000 + " }}",
    "attributes": "{{ a" + ".b" * 5000 + " }}",
    "filters": "{{ a" + "|e" * 5000 + " }}",
    "calls": "{{ a" + "()" * 3000 + " }}",
    "inline conditions": "{{ " + "1 if 1 else " * 3000 + "1 }}",
    "many outputs": "{{a}}" * 39000,
    "many conditions": "".join(f"{{% if a{n} %}}{{% set b{n}=1 %}}{{% endif %}}" for n in range(4000)),
    "many macros": "".join(f"{{% macro a{n}(x) %}}{{% endmacro %}}" for n in range(5000)),
    "a long number": "{{ " + "9" * 190000 + " }}",
    "openings": "{{" * 90000,
    "comments": "{#" * 90000,
    "blanks": "{{" + " " * 190000,
    "a recursive loop with a condition": "{% for a in b if a recursive %}{% endfor %}",
    "a long source": "a" * 300_000,
}
"""Sources that are not compiled."""

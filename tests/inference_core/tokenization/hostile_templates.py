"""Chat templates whose work their size does not bound, by name: what they double, repeat, pad or nest."""


def _grown(step: str, start: str = "'aa'", shown: str = "") -> str:
    """A value that `step` makes of itself, sixty times."""
    loop = f"{{% for i in range(60) %}}{step}{{% endfor %}}"
    return f"{{% set ns = namespace(x={start}) %}}{loop}{shown}"


def _set(expression: str, start: str = "'aa'", shown: str = "") -> str:
    return _grown(f"{{% set ns.x = {expression} %}}", start, shown)


def _again(body: str, first: str = "") -> str:
    return f"{first}{{% for i in range(100000) %}}{body}{{% endfor %}}"


LARGE: dict[str, str] = {
    **{
        expression: f"{{% set x = {expression} %}}"
        for expression in (
            "'a' * 10**9", "[0] * 10**9", "'a'|center(10**9)", "'1'.zfill(10**9)", "('a\\n' * 1000)|indent(10**7)",
            "range(100000)|join('a' * 100000)", "'\\t'.expandtabs(10**9)", "('{0}' * 10000).format('a' * 40000)",
            "'%1000000000d' % 1",
        )
    },
    **{
        f"doubled by {expression}": _set(expression)
        for expression in ("ns.x + ns.x", "ns.x ~ ns.x", "[ns.x, ns.x]|join", "'%s%s' % (ns.x, ns.x)", "ns.x * 2")
    },
    "doubled by a set block": _grown("{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"),
    "a list added to itself": _set("ns.x + ns.x", "[1]"),
    "a list written out": "{{ [{'a': 'b' * 40000}] * 40000 }}",
    "a long output": _again("{{ x }}", "{% set x = 'a' * 400000 %}"),
    "only in a long chat": "{% if messages|length > 90 %}" + _set("ns.x + ns.x") + "{% endif %}",
    "only with tools": "{% if tools %}" + _set("ns.x + ns.x") + "{% endif %}",
}  # fmt: skip
"""Gigabytes, soon."""

LONG: dict[str, str] = {
    "a tree of lists": _set("[ns.x, ns.x]", "[1]", "{{ ns.x|tojson }}"),
    "compared trees": "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    "nested loops": _again(_again(_again(""))),
    "a loop that leaves everything out": _again("{% for b in range(100000) if b < 0 %}{% endfor %}"),
    "a macro that calls itself twice": "{% macro m(n) %}{% if n > 0 %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
    "again a filter": _again("{% set y = range(100000)|select('lt', 0)|first %}"),
    "again a sort": _again("{% set y = x|sort %}", "{% set x = range(100000)|list %}"),
}
"""More work than any chat is worth."""

WORK = {**LARGE, **LONG}

REFUSED: tuple[str, ...] = (
    "{{ lipsum(100000) }}", "{{ strftime_now('%9999999d' * 10000) }}", "{{ 'a'|wordwrap(1) }}",
    "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}", "{% block a %}{{ self.a() }}{% endblock %}",
    "{% for x in [[1], [2]] recursive %}{{ loop([x, x]) }}{% endfor %}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ '{0.__class__.__mro__}'.format('') }}", "{{ ('{0.__class__.__mro__}'|format('')).x.y }}",
    "{{ messages.append(1) }}", "{{ raise_exception.__globals__.x }}", "{{ cycler.__init__.__globals__.os }}",
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
    "a long number": "{{ " + "9" * 90000 + " }}",
    "openings": "{{" * 45000,
    "comments": "{#" * 45000,
    "blanks": "{{" + " " * 90000,
    "a long source": "a" * 100_001,
}
"""Sources that are not compiled."""

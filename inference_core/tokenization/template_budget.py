"""What one render of a chat template may do: a number of units of work, which its input bounds and its source does not.

A unit is a node of the template that runs, a character or an item that is made. Every value that a template makes is
paid for before or as it is made, so that the budget bounds time and memory. A container is paid for with all that is in
it: one that holds another twice is written out twice.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from inference_core.errors import InvalidRequestError
from inference_core.io.background_tasks import require_wanted

# For every render, and for each value and each character that it is given: real templates take a tenth of these.
BASE_UNITS = 500_000
UNITS_PER_VALUE = 1_000
UNITS_PER_CHARACTER = 32
# Processor time: a bound on what the units of a slow operation do not say.
MAX_SECONDS = 4.0
# Between two looks at the clock.
_SLICE = 50_000
SLOW_SHARE = 0.4
"""Of the units that messages allow: a template that takes more of them is rendered on a thread."""
_MAX_BITS = 256
_MAX_WIDTH = 9_999
_TOO_WIDE = re.compile(r"\d{5,}|\*")
# What stands between the sign of a field and its letter; of a named field, all numbers of the text count.
_FIELD = re.compile(r"%([-+ #0-9.*]*)")
_NUMBER = re.compile(r"\d+")
# A list has 8 bytes for an item, a piece of a text some fifty more.
_PIECE = 16
_SEARCHED = 64


class TemplateWorkError(InvalidRequestError):
    """The model's chat template would do more work than the messages allow for. Use another template or model."""


class RenderBudget:
    """Of one render, in one thread. All methods raise TemplateWorkError when the units are used up; the rest of what
    they raise is what the operators of Python raise. `given`: what the template is given."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.left = _SLICE
        self._unused = BASE_UNITS - _SLICE
        self._granted = BASE_UNITS
        self._given = given
        self._until: float | None = None
        # Of containers by their id: they are held, so that no other gets it.
        self._weights: dict[int, tuple[Any, int]] = {}

    def spend(self, units: int) -> None:
        self.left -= units
        if self.left < 0:
            self.refill()

    @property
    def is_large(self) -> bool:
        """Whether the template did much more than real ones do with these messages."""
        used = self._granted - self._unused
        return used > SLOW_SHARE * BASE_UNITS and used > SLOW_SHARE * (BASE_UNITS + _allowance(self._given))

    def refill(self) -> None:
        """Take more units where `left` is negative. Raises AbandonedWorkError after its caller left."""
        require_wanted()
        now = time.thread_time()
        if self._until is None:
            self._until = now + MAX_SECONDS
        if self._unused + self.left < 0 and self._granted == BASE_UNITS:
            # Only now, as few renders come here.
            more = _allowance(self._given)
            self._granted += more
            self._unused += more
        if self._unused + self.left < 0 or now > self._until:
            raise TemplateWorkError(
                "the model's chat template does more work than these messages allow for; another model, or another "
                "template for this one, may read them",
                "messages",
            )
        wanted = min(_SLICE - self.left, self._unused)
        self.left += wanted
        self._unused -= wanted

    # -- texts ------------------------------------------------------------------------------------

    def output(self, value: Any) -> str:
        """Return what the template writes for `value`."""
        text = str(value)
        self.left -= len(text)
        if self.left < 0:
            self.refill()
        return text

    def made(self, value: Any) -> Any:
        """Pay for a value of unknown kind that was just made, and return it."""
        if isinstance(value, str):
            self.left -= len(value)
            if self.left < 0:
                self.refill()
        elif isinstance(value, _CONTAINERS):
            self.spend(self.weight(value))
        return value

    def joined(self, texts: Iterable[str]) -> str:
        """`"".join(texts)`."""
        found = texts if isinstance(texts, list) else list(texts)
        self.left -= sum(map(len, found))
        if self.left < 0:
            self.refill()
        return "".join(found)

    # -- operators --------------------------------------------------------------------------------

    def sum(self, value: Any) -> Any:
        """Pay for `a + b`, and return it."""
        if value.__class__ is str:
            self.left -= len(value)
            if self.left < 0:
                self.refill()
            return value
        return self.made(value)

    def multiply(self, left: Any, right: Any) -> Any:
        """`a * b`."""
        for count, repeated in ((left, right), (right, left)):
            if isinstance(count, int) and isinstance(repeated, str | list | tuple | bytes) and count > 1:
                self.spend(count * max(len(repeated), 1))
        product = left * right
        return self.made(_small(product))

    def power(self, left: Any, right: Any) -> Any:
        """`a ** b`."""
        if isinstance(left, int) and isinstance(right, int) and abs(right) * left.bit_length() > 4 * _MAX_BITS:
            raise OverflowError("a power of too many digits")
        return left**right

    def modulo(self, left: Any, right: Any) -> Any:
        """`a % b`: of a text, its format."""
        if isinstance(left, str):
            fields = [left] if "%(" in left else _FIELD.findall(left)
            if any(map(_TOO_WIDE.search, fields)):
                raise OverflowError(f"a format may be at most {_MAX_WIDTH} characters wide")
            values = right if isinstance(right, tuple) else tuple(right.values()) if isinstance(right, dict) else ()
            longest = max((self._text_bound(value) for value in (*values, right)), default=0)
            widths = sum(int(width) for field in fields for width in _NUMBER.findall(field))
            self.spend(len(left) + widths + (left.count("%") * longest if isinstance(right, dict) else longest))
        return self.made(left % right)

    def contains(self, item: Any, container: Any) -> bool:
        """`a in b`."""
        if container.__class__ is str:
            if len(container) > _SEARCHED:
                self.spend(len(container) // _SEARCHED)
        elif not isinstance(container, dict):
            self.spend(self.weight(container) if isinstance(item, _CONTAINERS) else _length(container))
        return item in container

    def compared(self, value: Any) -> Any:
        """Pay for a comparison with `value`, and return it."""
        if isinstance(value, _CONTAINERS):
            self.spend(self.weight(value))
        return value

    def sliced(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """`a[start:stop:step]`."""
        part = value[start:stop:step]
        self.spend(_length(part))
        return part

    # -- containers -------------------------------------------------------------------------------

    def weight(self, value: Any) -> int:
        """Values and characters in `value`, counted as often as they occur."""
        if value.__class__ is str:
            return 1 + len(value)
        if not isinstance(value, _CONTAINERS):
            return 1 + len(value) if isinstance(value, str) else 1
        known = self._weights.get(id(value))
        if known is not None:
            return known[1]
        weight = 1
        if isinstance(value, dict):
            for key, item in value.items():
                weight += self.weight(key) + self.weight(item)
        else:
            for item in cast(Iterable[Any], value):
                weight += self.weight(item)
        self._weights[id(value)] = value, weight
        return weight

    def counted(self, values: Iterable[Any]) -> Iterable[Any]:
        """`values`, paid for as they are read."""
        return self._counted(values) if values else values

    def _counted(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self.left -= 4
            if self.left < 0:
                self.refill()
            yield value

    def listed(self, values: Any) -> list[Any]:
        """`list(values)`."""
        found = list(self._counted(values))
        self.spend(self.weight(found))
        return found

    def _text_bound(self, value: Any) -> int:
        """The length of `value` as a text, at most."""
        return _LONGEST_ESCAPE * self.weight(value) + _MAX_BITS

    # -- methods ----------------------------------------------------------------------------------

    def call(self, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of a text, container or number that C defines."""
        owner, name = method.__self__, method.__name__
        if isinstance(owner, str):
            if (known := _OF_TEXT.get(name)) is not None:
                known(self, owner, args, kwargs)
            elif name not in _CHEAP_OF_TEXT:
                raise TypeError(f"chat templates cannot call '{name}'")
            result = method(*args, **kwargs)
            if result.__class__ is str:
                self.left -= len(result)
            elif result.__class__ is list:
                self.left -= _PIECE * len(result)
            if self.left < 0:
                self.refill()
            return result
        if isinstance(owner, bytes | bytearray | int | float) and name not in _OF_NUMBER:
            raise TypeError(f"chat templates cannot call '{name}'")
        if isinstance(owner, list | tuple):
            self.spend(self.weight(owner) if any(isinstance(arg, _CONTAINERS) for arg in args) else len(owner))
        result = method(*args, **kwargs)
        # What a dictionary holds is not made by asking for it.
        return self.made(result) if name in _COPIES or not isinstance(owner, dict) else result

    def join(self, separator: str, values: list[Any]) -> None:
        """Pay for `separator.join(values)`."""
        self.spend(len(separator) * len(values) + sum(map(self._joined, values)))

    def _joined(self, value: Any) -> int:
        return len(value) if isinstance(value, str) else self._text_bound(value)

    def replace(self, text: str, old: str, new: str) -> None:
        """Pay for what `text.replace(old, new)` adds to the text."""
        if len(new) > len(old):
            self.spend(text.count(old) * len(new))

    def width(self, width: Any) -> None:
        """Pay for padding up to `width` characters."""
        if isinstance(width, int):
            self.spend(max(width, 0))

    def format_field(self, value: Any, spec: str, formatted: Callable[[Any, str], Any]) -> Any:
        """`format(value, spec)`."""
        if _TOO_WIDE.search(spec):
            raise OverflowError(f"a format may be at most {_MAX_WIDTH} characters wide")
        return self.made(formatted(value, spec))


_CONTAINERS: tuple[type, ...] = (
    list,
    tuple,
    dict,
    set,
    frozenset,
    type({}.items()),
    type({}.values()),
    type({}.keys()),
)
# repr() of a character: \U0010ffff.
_LONGEST_ESCAPE = 10


def _allowance(given: Any) -> int:
    """The units for the values and the characters in `given`, which is JSON."""
    values = characters = 0
    rest = [given]
    while rest:
        value = rest.pop()
        values += 1
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, Mapping):
            rest += value.keys()
            rest += value.values()
        elif isinstance(value, list | tuple):
            rest += value
    return UNITS_PER_VALUE * values + UNITS_PER_CHARACTER * characters


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple | dict | set | bytes) else 1


def _small(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise OverflowError("a product of too many digits")
    return value


def _pad(budget: RenderBudget, owner: str, args: Any, kwargs: Any) -> None:
    for width in (*args, *kwargs.values()):
        budget.width(width)


def _tabs(budget: RenderBudget, owner: str, args: Any, kwargs: Any) -> None:
    for width in (*args, *kwargs.values()):
        if isinstance(width, int):
            budget.spend(max(width, 0) * owner.count("\t"))


def _replace(budget: RenderBudget, owner: str, args: Any, kwargs: Any) -> None:
    old, new = (*args, "", "")[:2]
    if isinstance(old, str) and isinstance(new, str):
        budget.replace(owner, old, new)


def _split(budget: RenderBudget, owner: str, args: Any, kwargs: Any) -> None:
    budget.spend(len(owner))


def _join(budget: RenderBudget, owner: str, args: Any, kwargs: Any) -> None:
    (values,) = args
    if not isinstance(values, list | tuple | dict | str):
        raise TypeError("join takes a list")
    budget.join(owner, list(budget.counted(values)))


# What these may make in C is not bounded by the text: it is paid for before.
_OF_TEXT: dict[str, Callable[[RenderBudget, str, Any, Any], None]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _pad),
    **dict.fromkeys(("split", "rsplit", "splitlines"), _split),
    "expandtabs": _tabs,
    "replace": _replace,
    "join": _join,
}
_CHEAP_OF_TEXT = frozenset(dir(str)) - {"translate", "encode", "format", "format_map", "maketrans", *_OF_TEXT}
_COPIES = ("copy", "fromkeys")
_OF_NUMBER = frozenset(("bit_length", "conjugate", "is_integer", "hex", "decode", "as_integer_ratio"))

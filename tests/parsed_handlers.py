"""What Litestar derives from the annotations of a handler, kept for the next application of the process.

A gateway has the same 270 handlers in every test, and reading them is most of its start. Processes that tests start
read theirs.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from litestar._kwargs import KwargsModel
from litestar._signature import SignatureModel
from litestar.utils.signature import ParsedSignature


@contextmanager
def handlers_read_once() -> Iterator[None]:
    """Let applications share what follows from a handler's function while the block runs."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name, key in (
            (ParsedSignature, "from_fn", _signature_key),
            (SignatureModel, "create", _model_key),
            (KwargsModel, "create_for_signature_model", _arguments_key),
        ):
            patch.setattr(owner, name, _once(getattr(owner, name), key))
        yield


def _once(make: Callable[..., Any], key: Callable[..., Hashable]) -> Callable[..., Any]:
    """`make`, called once for each `key` of its arguments; None is no key."""
    made: dict[Hashable, Any] = {}

    def kept(*positional: Any, **named: Any) -> Any:
        name = key(*positional, **named)
        if name is None:
            return make(*positional, **named)
        if name not in made:
            # With the arguments, whose addresses are in keys.
            made[name] = make(*positional, **named), positional, named
        return made[name][0]

    return kept


def _function_key(fn: Any) -> Hashable:
    """Equal for the functions that one `def` makes, unless defaults or annotations depend on its surroundings."""
    if all(isinstance(annotation, str) for annotation in getattr(fn, "__annotations__", [None]).values()):
        return fn.__code__, fn.__defaults__
    return fn


def _signature_key(fn: Any, signature_namespace: dict[str, Any]) -> Hashable:
    return _function_key(fn), frozenset(signature_namespace.items())


def _model_key(
    dependency_name_set: set[str], fn: Any, parsed_signature: object, type_decoders: list[Any], data_dto: object = None
) -> Hashable:
    """What names a function, its signature, and how many decoders there are: plugins make new ones each time."""
    name, module = getattr(fn, "__name__", None), getattr(fn, "__module__", None)
    return name, module, id(parsed_signature), frozenset(dependency_name_set), len(type_decoders), data_dto


def _arguments_key(
    signature_model: type[SignatureModel],
    parsed_signature: object,
    dependencies: dict[str, Any],
    path_parameters: set[str],
    layered_parameters: dict[str, Any],
    ctx: object = None,
) -> Hashable:
    if dependencies or layered_parameters:
        return None
    return signature_model, id(parsed_signature), frozenset(path_parameters), type(ctx)

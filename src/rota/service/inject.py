"""What a function asks for by type: its parameters that default to `rota.inject()`."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from inspect import Parameter
from typing import Any, NamedTuple

from rota.errors import ConfigurationError

__all__ = ["Key", "inject", "key_of", "resolved", "wanted"]


class Key(NamedTuple):
    """What a resource is found by: its type, and the name that tells two of one type apart."""

    type: Any
    name: str | None = None

    def __str__(self) -> str:
        kind = self.type.__qualname__ if isinstance(self.type, type) else str(self.type)
        shown = kind.rpartition("<locals>.")[2]
        return shown if self.name is None else f'Annotated[{shown}, "{self.name}"]'


class _Injected:
    """Stands where a resource will be. Whoever meets it was called past the worker, and is told when they use it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "rota.inject()"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"This is rota.inject(), which stands for a resource, and has no {name!r}: the function was called past Rota, which "
            "would have filled it in. Pass the resource as an argument."
        )


_INJECTED = _Injected()


def inject() -> Any:
    """The default of a parameter that a worker fills in, by the parameter's type, with what an `@app.resource` provides.

    Such a parameter is none of the job's arguments. `Annotated[Pool, "replica"]` asks for the one of that name.
    """
    return _INJECTED


def wanted(function: Callable[..., Any], who: str) -> dict[str, Key]:
    """The parameters of a function that are to be filled in, and with what. Raises ConfigurationError."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return {}  # what has no signature is refused by those who need one
    wants: dict[str, Key] = {}
    for each in parameters:
        if each.default is inject:
            raise ConfigurationError(f"{who} has {each.name!r} default to rota.inject itself: write rota.inject().")
        if each.default is _INJECTED:
            if each.kind is Parameter.POSITIONAL_ONLY:
                raise ConfigurationError(
                    f"{who} cannot have {each.name!r} filled in, which is passed by position only: put it after the /."
                )
            wants[each.name] = _key_of_parameter(each, function, who)
        elif wants and each.kind is Parameter.POSITIONAL_OR_KEYWORD:
            raise ConfigurationError(
                f"{who} takes {each.name!r} after {', '.join(map(repr, wants))}, which is filled in: a call by position would not say "
                "which of them it means. Put what is injected last, or after a *."
            )
    return wants


def _key_of_parameter(parameter: Parameter, function: Callable[..., Any], who: str) -> Key:
    if parameter.annotation is Parameter.empty:
        raise ConfigurationError(
            f"{who} cannot have {parameter.name!r} filled in: it has no annotation, and that is what a resource is found by."
        )
    try:
        return key_of(resolved(parameter.annotation, function))
    except Exception as error:
        raise ConfigurationError(
            f"{who} cannot have {parameter.name!r} filled in: its annotation {parameter.annotation!r} cannot be read ({error}). "
            "Define or import the type at the top of the module, not only for type checkers."
        ) from error


def key_of(annotation: Any) -> Key:
    """What a type, or `Annotated[type, "name"]`, is found by. Raises ValueError."""
    name = None
    if typing.get_origin(annotation) is typing.Annotated:
        annotation, *notes = typing.get_args(annotation)
        names = [each for each in notes if isinstance(each, str)]
        if len(names) > 1:
            raise ValueError(
                f"it has {len(names)} names, {', '.join(map(repr, names))}, and one is what tells it apart"
            )
        name = names[0] if names else None
    if annotation in (None, types.NoneType, Any, object, Parameter.empty):
        raise ValueError("nothing can be found by it")
    if not _is_type(annotation):
        raise ValueError("it is no type")
    return Key(annotation, name)


def _is_type(it: Any) -> bool:
    # list[Pool] has an origin; a NewType or an alias is a thing of typing's, and so may be a name that nobody has looked up
    is_form = typing.get_origin(it) is not None or type(it).__module__.startswith("typing")
    return isinstance(it, type) or (is_form and not isinstance(it, typing.ForwardRef))


def resolved(annotation: Any, function: Callable[..., Any]) -> Any:
    """An annotation with the names in it looked up where the function was written. Raises what stands in its way."""
    code: Any = function
    while isinstance(code, functools.partial):
        code = code.func
    code = inspect.unwrap(code)
    if not hasattr(code, "__globals__"):
        code = type(code).__call__
    names = {each.__name__: each for each in getattr(code, "__type_params__", ())}
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    return typing.get_type_hints(holder, getattr(code, "__globals__", {}), names, include_extras=True)["it"]

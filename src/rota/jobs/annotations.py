"""What a task's function declares: its annotations resolved, and a converter for each of them.

Parameters that cannot be resolved or converted are told of, all at once, when the task is declared, and not when the first job
is enqueued. A return annotation of that sort is as none.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from inspect import Parameter
from typing import Any

from rota.conversion.build import Builder, worded
from rota.conversion.plain import ANYTHING, Converter, Unconvertible, shown
from rota.errors import ConfigurationError
from rota.service.inject import resolved

__all__ = [
    "POSITIONAL",
    "VARIADIC",
    "declaration",
    "is_unpacked",
    "parameter_converters",
    "refuse_unreachable",
    "result_converter",
]

POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def declaration(function: Callable[..., Any], task: str) -> inspect.Signature:
    """The function's signature with its annotations resolved; one that cannot be is left as the text it is."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"Task {task!r} cannot be declared: {shown(function)} has no signature ({error}). Wrap it in a def."
        ) from error

    def read(annotation: Any) -> Any:
        try:
            return resolved(annotation, function)
        except Exception as error:
            return Unresolved(annotation, error)

    return signature.replace(
        parameters=[each.replace(annotation=read(each.annotation)) for each in signature.parameters.values()],
        return_annotation=read(signature.return_annotation),
    )


class Unresolved:
    """An annotation that could not be resolved, and why."""

    def __init__(self, annotation: Any, error: Exception) -> None:
        self.annotation = annotation
        self.error = error

    def __repr__(self) -> str:
        return str(self.annotation)


def parameter_converters(parameters: list[Parameter], task: str) -> dict[str, Converter]:
    builder = Builder()
    converters: dict[str, Converter] = {}
    problems: list[str] = []
    for each in parameters:
        annotation = each.annotation
        if isinstance(annotation, Unresolved):
            problems.append(
                f"parameter {each.name!r} is annotated {annotation}, which cannot be resolved ({annotation.error}): "
                f"define or import it at the top of the module, not only for type checkers"
            )
            continue
        try:
            converters[each.name] = builder.build(whole(each))
        except Unconvertible as error:
            problems.append(f"parameter {each.name!r} is annotated {worded(annotation)}, {error}")
        except RecursionError:
            problems.append(f"parameter {each.name!r} is annotated {worded(annotation)}, which has no end")
    if problems:
        raise ConfigurationError(f"Task {task!r} cannot be declared: {'; '.join(problems)}.")
    return converters


def whole(parameter: Parameter) -> Any:
    """The annotation of all that the parameter takes: `*args: int` is a tuple of ints."""
    annotation = Any if parameter.annotation is Parameter.empty else parameter.annotation
    if typing.get_origin(annotation) is typing.Unpack:
        return typing.get_args(annotation)[0]
    if parameter.kind not in VARIADIC or is_unpacked(annotation):
        return annotation
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return types.GenericAlias(tuple, (annotation, ...))
    return types.GenericAlias(dict, (str, annotation))


def is_unpacked(annotation: Any) -> bool:
    return typing.get_origin(annotation) is typing.Unpack or getattr(annotation, "__unpacked__", False) is True


def result_converter(annotation: Any) -> Converter:
    if isinstance(annotation, Unresolved):
        return ANYTHING
    try:
        return Builder().build(annotation)
    except (Unconvertible, RecursionError):
        return ANYTHING


def refuse_unreachable(declared: inspect.Signature, task: str, skip: frozenset[str]) -> None:
    """A parameter that Rota fills in is passed by name, so it must not stand where only a position reaches."""
    parameters = declared.parameters.values()
    takes_rest = any(each.kind is Parameter.VAR_POSITIONAL for each in parameters)
    for each in parameters:
        by_position = POSITIONAL if takes_rest else (Parameter.POSITIONAL_ONLY,)
        if each.name in skip and each.kind in by_position:
            raise ConfigurationError(
                f"Task {task!r} cannot be declared: parameter {each.name!r} is filled in by Rota, by name, and can "
                f"only be passed by position in {task}{declared}. Put it after the positional parameters, as keyword-only."
            )

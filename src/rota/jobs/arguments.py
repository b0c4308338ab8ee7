"""A task's signature: from a call to the JSON that is stored, and from there to the call a worker makes.

The payload is one JSON object: each argument that was given, under its parameter's name, with `*args` as an array and
`**kwargs` as an object under theirs. A default is stored only when it was passed: a waiting job gets the default of the
code that runs it. What each type looks like as JSON is told in `conversion/build`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterator, Mapping
from inspect import Parameter
from typing import Any

from rota.conversion.plain import ANYTHING, Encode, Mismatch, Room, TooLarge, brief, dumps, shown
from rota.conversion.shorthand import shorthand
from rota.errors import InvalidArguments, PayloadTooLarge
from rota.jobs.annotations import (
    POSITIONAL,
    VARIADIC,
    declaration,
    is_unpacked,
    parameter_converters,
    refuse_unreachable,
    result_converter,
)

NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)

HIDDEN = "redacted (its value is not shown)"

FILLED_IN = "is filled in where the job runs (rota.inject()), and is none of its arguments"

LIMIT = 1_048_576  # bytes: what is larger is better kept elsewhere, with its key as the argument


class Signature:
    """Converts the calls and results of one task. Built once, when the task is declared; any thread may use it.

    Parameters in `skip` are neither accepted from the caller nor stored. Raises ConfigurationError, naming them all,
    where parameters have annotations that cannot be resolved or converted. A return annotation of that sort is as none.
    No message shows the value of a parameter in `redact`, or any part of it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        task: str,
        *,
        skip: frozenset[str] = frozenset(),
        redact: Collection[str] = (),
        limit: int = LIMIT,
    ) -> None:
        self._task = task
        self._limit = limit
        self._skip = skip
        self._redact = redact
        declared = declaration(function, task)
        refuse_unreachable(declared, task, skip)
        parameters = [each for each in declared.parameters.values() if each.name not in skip]
        # resolved, `-> None` has become its type; a message shows it as it was written
        returns = None if declared.return_annotation is types.NoneType else declared.return_annotation
        self._call = declared.replace(parameters=parameters, return_annotation=returns)
        converters = parameter_converters(parameters, task)
        self._result = result_converter(declared.return_annotation)

        self._positional = [each for each in parameters if each.kind in POSITIONAL]
        self._rest, self._extra = (next((p.name for p in parameters if p.kind is kind), None) for kind in VARIADIC)
        self._by_position = tuple((each.name, converters[each.name].encode) for each in self._positional)
        self._by_keyword = {each.name: converters[each.name].encode for each in parameters if each.kind in NAMED}
        self._variadic = {each.name: converters[each.name].encode for each in parameters if each.kind in VARIADIC}
        self._unpacks = frozenset(each.name for each in parameters if is_unpacked(each.annotation))
        self._decoders = {name: converter.decode for name, converter in converters.items()}
        self._required = self._unpacks | {
            each.name for each in parameters if each.default is Parameter.empty and each.kind not in VARIADIC
        }
        self._by_keyword_alone = not self._variadic and len(self._by_keyword) == len(parameters)
        #: the same as `encode` for calls that are whole and short; None for others
        self.short = shorthand(parameters, converters, limit)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, whole: bool = True) -> str:
        """The call as the JSON text of one object. Raises InvalidArguments or PayloadTooLarge; never anything else.

        What is not `whole` may lack arguments that someone gives later.
        """
        payload = self._payload(args, kwargs)
        if whole and not self._required <= payload.keys():
            raise self.missing(self.lacking(payload))
        return self._written(payload, "arguments")

    def encode_open(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, str | None]:
        """The same for a call that may lack one argument, which someone gives later; and the name of that one."""
        payload = self._payload(args, kwargs)
        lacking = () if self._required <= payload.keys() else self.lacking(payload)
        if len(lacking) > 1:
            raise self.missing(lacking)
        return self._written(payload, "arguments"), lacking[0] if lacking else None

    def _payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        payload: dict[str, Any] = {}
        room = Room(self._limit)
        name = ""
        try:
            for (name, encode), value in zip(self._by_position, args, strict=False):
                payload[name] = encode(value, room)
            for name, value in kwargs.items():
                by_name = self._by_keyword.get(name)
                if by_name is not None and name not in payload:
                    payload[name] = by_name(value, room)
            if len(payload) != len(args) + len(kwargs) or self._unpacks:
                for name, encode, value in self._left_over(args, kwargs):
                    payload[name] = encode(value, room)
        except Mismatch as mismatch:
            problem, cause = self._told(name, mismatch)
            raise InvalidArguments(
                f"Task {self._task!r} was not enqueued: argument {problem}. "
                f"{mismatch.advice or f'The call is {self._task}{self._call}.'}"
            ) from cause
        except TooLarge as too_large:
            raise self._too_large(f"arguments, with {name!r},", "at least ", self._limit + too_large.excess) from None
        except InvalidArguments:
            raise
        except Exception as error:  # raised by the value itself: a property, an iterator, a time zone
            secret = name in self._redact
            raise InvalidArguments(
                f"Task {self._task!r} was not enqueued: argument {name} is {HIDDEN if secret else shown(value)}, and reading it "
                f"failed with {type(error).__name__ if secret else brief(error)}. Pass a value that can be read to its end."
            ) from (None if secret else error)
        return payload

    def lacking(self, payload: Mapping[str, Any]) -> tuple[str, ...]:
        """The parameters that have no default and no value in a payload."""
        return tuple(name for name in self._call.parameters if name in self._required and name not in payload)

    def free(self, payload: Mapping[str, Any]) -> tuple[str, ...]:
        """The parameters that take one value and have none in a payload."""
        return tuple(name for name in self._call.parameters if name not in self._variadic and name not in payload)

    def missing(self, names: Collection[str]) -> InvalidArguments:
        """What is raised where a call lacks these."""
        return self._not_a_call(f"{', '.join(names)} is missing")

    def takes(self, name: str, value: Any) -> bool:
        """Whether a JSON value fits the parameter's annotation."""
        try:
            self._decoders[name](value)
        except Exception:
            return False
        return True

    def annotation(self, name: str) -> Any:
        return self._call.parameters[name].annotation

    @property
    def returns_nothing(self) -> bool:
        """Whether the function says that it returns None."""
        return self._call.return_annotation is None

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names."""
        return tuple(self._call.parameters)

    def values(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call that fits, by name, with the defaults of those that were not given."""
        bound = self._call.bind(*args, **kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)

    def encode_whole(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Like `encode`, with defaults: two calls that mean the same have the same text, but for the order of names."""
        bound = self._call.bind(*args, **kwargs)
        bound.apply_defaults()
        return self.encode(bound.args, bound.kwargs)

    def decode(self, payload: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments to call the function with. Raises InvalidArguments."""
        if self._by_keyword_alone:
            decoders = self._decoders
            try:
                values = {name: decoders[name](value) for name, value in payload.items()}
            except Exception:  # noqa: S110 - what is wrong is found and told below
                pass
            else:
                if len(values) == len(decoders):
                    return (), values
        return self._decoded(payload, self._not_its_payload)

    def read(
        self, given: Mapping[str, Any], refused: str = "", *, whole: bool = True
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same for arguments that someone wrote as JSON just now: what is wrong with them is theirs to mend.

        `refused` says what does not happen then, if that is not an enqueue.
        """
        return self._decoded(given, lambda problem: self._not_a_call(problem, refused), whole=whole)

    def _decoded(
        self, payload: Mapping[str, Any], refused: Callable[[str], InvalidArguments], *, whole: bool = True
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        values: dict[str, Any] = {}
        name = ""
        try:
            for name, value in payload.items():
                decode = self._decoders.get(name)
                if decode is None:
                    raise Mismatch("", problem=FILLED_IN if name in self._skip else "is not a parameter")
                values[name] = decode(value)
        except Mismatch as mismatch:
            problem, cause = self._told(name, mismatch)
            raise refused(problem) from cause
        except Exception as error:
            if name in self._redact or (self._redact and not name):
                raise refused(f"reading {name or 'them'} failed with {type(error).__name__}") from None
            raise refused(f"reading {name or shown(payload)} failed with {brief(error)}") from error
        if len(values) < len(self._decoders) and whole and not self._required <= values.keys():
            missing = ", ".join(each for each in self._call.parameters if each in self._required - values.keys())
            raise refused(f"{missing} is missing")
        if self._by_keyword_alone:
            return (), values
        return self._spread(values, refused)

    def encode_result(self, value: Any) -> str | None:
        """What the task returned as JSON text, and None for None, whatever the annotation says.

        Raises InvalidArguments or PayloadTooLarge.
        """
        if value is None:
            return None
        try:
            result = self._result.encode(value, Room(self._limit))
        except Mismatch as mismatch:
            raise InvalidArguments(
                f"Task {self._task!r} returned {shown(value)}, which was not stored: {path('the result', mismatch)} "
                f"{mismatch.problem}. {mismatch.advice or 'Return what its annotation says, or None.'}"
            ) from mismatch.__cause__
        except TooLarge as too_large:
            raise self._too_large("result", "at least ", self._limit + too_large.excess) from None
        except Exception as error:
            raise InvalidArguments(
                f"Task {self._task!r} returned {shown(value)}, which was not stored: reading it failed with "
                f"{brief(error)}. Return plain JSON, or None."
            ) from error
        return self._written(result, "result")

    def encode_checkpoint(self, value: Any) -> str | None:
        """A checkpoint's value, any JSON, as text, and None for None. Raises InvalidArguments or PayloadTooLarge."""
        if value is None:
            return None
        try:
            return self._written(ANYTHING.encode(value, Room(self._limit)), "checkpoint")
        except Mismatch as mismatch:
            raise InvalidArguments(
                f"The checkpoint of task {self._task!r} was not stored: {path('its value', mismatch)} {mismatch.problem}. "
                "A checkpoint is plain JSON: text, numbers, lists and dicts."
            ) from mismatch.__cause__
        except TooLarge as too_large:
            raise self._too_large("checkpoint", "at least ", self._limit + too_large.excess) from None

    def decode_result(self, value: Any) -> Any:
        """The stored result as its annotation says, and None for none. Raises InvalidArguments."""
        if value is None:
            return None
        try:
            return self._result.decode(value)
        except Mismatch as mismatch:
            problem, cause = f"{path('it', mismatch)} {mismatch.problem}", mismatch.__cause__
        except Exception as error:
            problem, cause = f"reading it failed with {brief(error)}", error
        raise InvalidArguments(
            f"The stored result of task {self._task!r} is not what its annotation says: {problem}. It was stored by "
            f"another version of the task; annotate what both return."
        ) from cause

    def _left_over(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Encode, Any]]:
        """What a call gives beyond the named parameters, for `*args` and `**kwargs` to take."""
        rest = args[len(self._by_position) :]
        extra = {name: value for name, value in kwargs.items() if name not in self._by_keyword}
        for (name, _), _value in zip(self._by_position, args, strict=False):
            if name in kwargs and name in self._by_keyword:
                raise self._not_a_call(f"{name} is given twice, by position and by name")
        if rest and self._rest is None:
            raise self._not_a_call(
                f"{len(args)} arguments are given by position, and it takes {len(self._by_position)}"
            )
        if self._extra is None or extra.keys() & self._skip:
            for name in extra:
                if name in self._skip:
                    raise self._not_a_call(f"{name} {FILLED_IN}")
                if self._extra is None:
                    raise self._not_a_call(f"{name} is not a parameter to be passed by name")
        for variadic, values in ((self._rest, rest), (self._extra, extra)):
            if variadic is not None and (values or variadic in self._unpacks):
                yield variadic, self._variadic[variadic], values

    def _told(self, name: str, mismatch: Mismatch) -> tuple[str, BaseException | None]:
        """What is wrong with an argument, as a clause, and what raised it; of one that is redacted, no more than may be known."""
        if name not in self._redact:
            return f"{path(name, mismatch)} {mismatch.problem}", mismatch.__cause__
        # neither the way into it, which leads over keys, nor what raised it, which quotes it
        return (
            f"{name} is {HIDDEN}, {f'expected {mismatch.expected}' if mismatch.expected else 'and does not fit'}",
            None,
        )

    def _spread(
        self, values: dict[str, Any], refused: Callable[[str], InvalidArguments]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Values by name as a call, where some can only be passed by position or belong to `**kwargs`."""
        rest = values.pop(self._rest, ()) if self._rest else ()
        extra = values.pop(self._extra, {}) if self._extra else {}
        if not extra.keys().isdisjoint(self._by_keyword.keys() | self._skip):
            raise refused(f"{self._extra} has the name of another parameter")
        # what precedes *rest goes by position too, and so do the defaults between what was given
        ahead = [each for each in self._positional if rest or each.kind is Parameter.POSITIONAL_ONLY]
        while ahead and not rest and ahead[-1].name not in values:
            ahead.pop()
        args = [values.pop(each.name, each.default) for each in ahead]
        return (*args, *rest), values | extra

    def _written(self, value: Any, what: str) -> str:
        text = dumps(value)
        size = len(text) if text.isascii() else len(text.encode())
        if size > self._limit:
            raise self._too_large(what, "", size)
        return text

    def _too_large(self, what: str, at_least: str, size: int) -> PayloadTooLarge:
        return PayloadTooLarge(
            f"The {what} of task {self._task!r} would take {at_least}{size:,} bytes as JSON, and the limit is "
            f"{self._limit:,}. Store the data elsewhere and pass or return its key."
        )

    def _not_a_call(self, problem: str, refused: str = "") -> InvalidArguments:
        lead = refused or f"Task {self._task!r} was not enqueued"
        return InvalidArguments(f"{lead}: {problem}. The call is {self._task}{self._call}.")

    def _not_its_payload(self, problem: str) -> InvalidArguments:
        return InvalidArguments(
            f"The stored arguments of task {self._task!r} do not fit {self._task}{self._call}: {problem}. They were "
            f"enqueued by another version of the task, or edited: accept both forms, or give the new one another name."
        )


def path(root: str, mismatch: Mismatch) -> str:
    steps = mismatch.path
    return f"{root}" + (steps if len(steps) <= 200 else f"{steps[:100]}…{steps[-100:]}")

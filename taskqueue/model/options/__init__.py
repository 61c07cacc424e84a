"""The options of a job: checks the options of a call, a class and a scheduler, and merges the three levels."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from typing import Any

from taskqueue.errors import InvalidOption
from taskqueue.model import other_systems
from taskqueue.model.options.table import OPTIONS, Scope
from taskqueue.model.retry import RetryPolicy
from taskqueue.model.schedules.durations import LONGEST, from_now
from taskqueue.model.shown_text import as_code

LONGEST_NUMBER = 14_000
"""Maximum number of bits of a whole number that messages show: Python refuses to write more than 4,300 digits."""


def checked(
    given: Mapping[str, Any], where: str = "add_job", scope: Scope = Scope.ONE, call: str = ""
) -> dict[str, Any]:
    """Return the options in their stored form, or raise ``InvalidOption`` naming option, value, place and remedy.

    ``where`` names the place that set them and ``scope`` its level: ``id``, for instance, cannot be a default of many.
    ``call`` is the code of a call up to its data, to which an unknown name may belong.
    """
    return {name: _value(name, value, where, scope, call) for name, value in given.items()}


def check_declared(owner: Any, work: Callable[..., Any] | None) -> None:
    """Raise ``InvalidOption`` for a wrong option of a task or a class, when it is declared."""
    options = checked(declared(owner, work), f"options of {owner.__module__}:{owner.__qualname__}", Scope.CLASS)
    if not isinstance(options.get("retry", 0), int):
        check_interval(options["retry"], options)
    if "promise" in options and "begin_within" not in options:
        raise InvalidOption(
            f"options of {owner.__module__}:{owner.__qualname__}: promise={options['promise']:g} is the share of jobs "
            "that start in time: declare begin_within as well, such as begin_within=30 for 30 seconds"
        )


def declared(owner: Any, work: Callable[..., Any] | None) -> Mapping[str, Any]:
    """Return the options on a task or a class, whose work this function does; None leaves it to subclasses."""
    options: Any = owner.options
    if type(options) is not dict and not isinstance(options, Mapping):
        raise InvalidOption(
            f"options of {owner.__qualname__} are {as_code(options)}: declare a mapping of names to values"
        )
    if options.get("concurrency", 1) != 1 and work is not None and not iscoroutinefunction(work):
        name = "start" if isinstance(owner, type) else owner.__qualname__
        raise InvalidOption(
            f"options of {owner.__qualname__}: concurrency={as_code(options['concurrency'])} is for jobs that share an "
            f"event loop: define {name} with async def"
        )
    return options


def _value(name: str, value: Any, where: str, scope: Scope, call: str) -> Any:
    option = OPTIONS.get(name)
    as_data = f"{call}{_short({name: value})})" if call and (option is None or option.is_of_class) else ""
    if option is None:
        raise InvalidOption(f"{where}: there is no option {name!r}: {_hint(name, value, as_data)}")
    if option.is_of_class and scope is Scope.ONE:
        data = f"; pass data as one argument after the job: {as_data}" if as_data else ""
        raise InvalidOption(
            f"{where}: {name} applies to all jobs of a class: declare it in the options of the class{data}"
        )
    if scope > option.scope is Scope.ONE:
        raise InvalidOption(f"{where}: {name} applies to one job: pass it to add_job")
    if scope > option.scope:
        raise InvalidOption(
            f"{where}: {name} cannot be set for jobs of all classes: declare it on a class, or pass it to add_job"
        )
    try:
        return value_of(name, value)
    except InvalidOption as refused:
        raise InvalidOption(f"{where}: {refused}") from None


def value_of(name: str, value: Any) -> Any:
    """Return the stored form of an option's value, or raise ``InvalidOption`` naming option, value and way out."""
    return named(name, value, OPTIONS[name].check)


def named(name: str, value: Any, check: Callable[[Any], Any]) -> Any:
    """Return the result of the check, or raise its ``InvalidOption`` with name and value in front."""
    if isinstance(value, int) and value.bit_length() > LONGEST_NUMBER:
        raise InvalidOption(f"{name} is a whole number of {value.bit_length():,} bits: too large for any option")
    try:
        return check(value)
    except InvalidOption as refused:
        said = str(refused).removeprefix(as_code(value))
        raise InvalidOption(f"{name}={_short(value)}{said if said.startswith(' ') else f': {refused}'}") from None


def _hint(name: object, value: object, as_data: str) -> str:
    """Return the way out for an unknown name; ``as_data`` is the call that passes it as data."""
    if str(name) in other_systems.OPTIONS:
        meant = other_systems.OPTIONS[str(name)]
        if meant == "at" and isinstance(value, int | float) and 0 < value <= LONGEST:
            meant = f"at={from_now(value)!r}"
        if meant == "limits" and isinstance(value, str) and re.fullmatch(r"[0-9]+/[smhd]", value):
            meant = f"limits={value.replace('/', '/1')!r}"
        return f"did you mean {meant}?"
    if str(name) in other_systems.WAYS:
        return other_systems.WAYS[str(name)]
    from difflib import get_close_matches

    near = get_close_matches(str(name), OPTIONS, n=3, cutoff=0.65)
    if near:
        meant = f"did you mean {' or '.join(near)}?"
        return f"{meant} Pass data as one argument after the job: {as_data}" if as_data else meant
    options = ", ".join(OPTIONS)
    return f"pass data as one argument after the job: {as_data}; options are {options}" if as_data else f"use {options}"


def _short(value: object) -> str:
    text = as_code(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def merged(call: Mapping[str, Any], declared: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options, which are checked already: the call wins over the class, the class over the scheduler."""
    options = {**_DEFAULTS, **defaults, **declared, **call}
    if not isinstance(options["retry"], int):
        check_interval(options["retry"], call, declared, defaults)
    return options


def check_retry_on(call: Mapping[str, Any], declared: Mapping[str, Any], defaults: Mapping[str, Any], job: str) -> None:
    """Refuse ``retry_on`` of a known job for which no level has ``retry``: it would have no effect.

    As a default of all jobs it is for the jobs that are retried.
    """
    own = {**declared, **call}
    if own.get("retry_on") and "retry" not in own and "retry" not in defaults:
        raise InvalidOption(f"{job}: retry_on is for jobs that are retried: pass retry as well, such as retry=3")


def check_interval(policy: RetryPolicy, *levels: Mapping[str, Any]) -> None:
    """Refuse an interval at or above the level of the policy: it would have no effect."""
    for level in levels:
        if "retry_interval" in level:
            raise InvalidOption(f"retry is a policy with pauses of its own ({policy}): leave out retry_interval")
        if "retry" in level:
            return


_DEFAULTS = {name: option.default for name, option in OPTIONS.items()}

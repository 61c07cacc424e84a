"""The types of data, state and result that a job declares: by its annotations, or as ``Job[Data, Result]``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, get_args, get_origin, get_type_hints

from taskqueue.errors import InvalidJob
from taskqueue.model.job import Job, TaskFunction
from taskqueue.model.stepwise import StepwiseJob

if TYPE_CHECKING:
    from taskqueue.model.codecs import Form


class Arguments(NamedTuple):
    """The types of the arguments of a task; None for a type that accepts any value."""

    named: Mapping[str, Form | None]
    others: Form | None
    """Of the arguments that ``**kwargs`` takes."""

    def __bool__(self) -> bool:
        return self.others is not None or any(form is not None for form in self.named.values())

    def restored(self) -> Arguments:
        """Return the types that are not restored by reading them."""
        named = {name: None if form is None or form.is_native else form for name, form in self.named.items()}
        return Arguments(named, None if self.others is None or self.others.is_native else self.others)


class JobTypes(NamedTuple):
    """The declared types of a job; None if values are kept and restored as they are."""

    data: Form | None = None
    state: Form | None = None
    result: Form | None = None
    arguments: Arguments | None = None
    """Of a function with ``@task``: the types of its arguments."""
    restored: Arguments | None = None
    """Types that are not restored by reading them."""
    takes_data: bool = False
    """Whether ``start`` is called with the data."""
    has_default: bool = False
    """Whether ``start`` is called without data if there are none."""

    def encoded(self, data: Any, where: str, without: tuple[str, ...] = ()) -> Any:
        """Return the data in their stored form; raise ``InvalidJob`` with the path of a misfit.

        The parts ``without`` are put in later.
        """
        if self.data is not None:
            return self.data.encode_without(without, data, where) if without else self.data.encode(data, where)
        if self.arguments is None or not isinstance(data, Mapping):
            return data
        named, others = self.arguments
        return {
            name: value if (form := named.get(name, others)) is None else form.encode(value, f"{where}[{name!r}]")
            for name, value in data.items()
        }

    def decoded(self, data: Any, where: str = "data") -> Any:
        """Return the data of their stored form; raise ``InvalidJob`` with the path of a misfit."""
        if self.data is not None:
            return self.data.decode(data, where)
        if self.restored is None or not isinstance(data, Mapping):
            return data
        named, others = self.restored
        return {
            name: value if (form := named.get(name, others)) is None else form.decode(value, f"{where}[{name!r}]")
            for name, value in data.items()
        }


_NATIVES: tuple[Any, ...] = (str, int, float, bool, bytes, list, dict, type(None))
"""Frequent result types that need no form: for them, the modules that build forms are not even imported."""

_NONE = JobTypes()
_ATTRIBUTE = "_declared_types"


def types_of(job: Any) -> JobTypes | None:
    """Return the types that a job declares; None if it declares none, or if only its path is known.

    They are determined once and cached with the class or task, because every add needs them.
    """
    try:
        types: JobTypes | None = job.__dict__[_ATTRIBUTE]
    except (AttributeError, KeyError):
        if isinstance(job, TaskFunction):
            declared = _of_function(job)
        elif isinstance(job, type) and issubclass(job, Job):
            declared = _of_class(job)
        else:
            return None
        types = None if declared == _NONE else declared
        setattr(job, _ATTRIBUTE, types)
    return types


def _of_class(kind: type[Job[Any, Any]]) -> JobTypes:
    data, result = _parameters(kind)
    start = kind.start
    given = data_parameter(kind)
    if given is not None and given.annotation is not given.empty:
        data = _hint(start, given.name, vars(kind), needed=True)
    has_default = given is not None and given.default is not given.empty
    if has_default and data is not None:
        data = Optional[data]  # noqa: UP045 - the type may be text of a forward reference
    if result is None:
        work = kind.complete if issubclass(kind, StepwiseJob) else start
        result = _hint(work, "return", vars(kind))
    owner = next((base for base in kind.__mro__ if "state" in vars(base).get("__annotations__", {})), Job)
    state = None if issubclass(kind, StepwiseJob) or owner is Job else _hint(owner, "state", vars(owner))
    return JobTypes(
        data=_form(data, natives=True),
        state=_form(state),
        result=_form(result),
        takes_data=given is not None,
        has_default=has_default,
    )


def _of_function(task: TaskFunction[..., Any]) -> JobTypes:
    named: dict[str, Form | None] = {}
    others = None
    for name, parameter in inspect.signature(task).parameters.items():
        hint = _hint(task.function, name, {}, needed=True)
        form = _form(hint if hint is None or parameter.default is not None else Optional[hint], natives=True)  # noqa: UP045
        if parameter.kind is parameter.VAR_KEYWORD:
            others = form
        elif parameter.kind is not parameter.VAR_POSITIONAL:  # which has no names to be kept by
            named[name] = form
    arguments = Arguments(named, others)
    return JobTypes(
        arguments=arguments or None,
        restored=arguments.restored() or None,
        result=_form(_hint(task.function, "return", {})),
    )


def _form(hint: Any, natives: bool = False) -> Form | None:
    """Return the form of a type; None for a type whose values are kept and restored as they are.

    With ``natives``, types that only need a check are included.
    """
    if hint is None or hint is Any or hint is object or (hint in _NATIVES and not natives):
        return None
    from taskqueue.model.codecs import Form, form

    made = form(hint)
    takes_any = type(made) is Form
    return None if takes_any or (made.is_native and not natives) else made


def data_parameter(kind: type[Job[Any, Any]]) -> inspect.Parameter | None:
    """Return the parameter of ``start`` that takes the data; None if it has none."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = list(inspect.signature(kind.start).parameters.values())
    if not isinstance(inspect.getattr_static(kind, "start"), staticmethod | classmethod):
        parameters = parameters[1:]
    for parameter in parameters:
        if parameter.kind in kinds and (parameter.default is parameter.empty or parameter.name == "data"):
            return parameter
    return None


def _hint(owner: Any, name: str, names: Mapping[str, Any], *, needed: bool = False) -> Any:
    """Return the type of an annotation; None if there is none or it cannot be resolved."""
    if isinstance(owner, type):
        annotations, scope = vars(owner).get("__annotations__", {}), vars(inspect.getmodule(owner) or SimpleNamespace())
    else:
        owner = inspect.unwrap(owner)  # a decorator has the names of another module
        annotations, scope = getattr(owner, "__annotations__", {}), getattr(owner, "__globals__", {})
    if name not in annotations:
        return None
    if annotations[name] is None:
        return type(None)
    holder: Any = SimpleNamespace(__annotations__={name: annotations[name]})
    try:
        return get_type_hints(holder, scope, dict(names), include_extras=True)[name]
    except Exception as error:
        if not needed:
            return None
        raise InvalidJob(
            f"{owner.__qualname__}: the type of {name}, {annotations[name]}, cannot be resolved ({error}): "
            "import or define it at the top of the module, not under TYPE_CHECKING"
        ) from None


def _parameters(kind: type) -> tuple[Any, Any]:
    """Return the parameters that a class gives to ``Job[Data, Result]``; None for parameters that it leaves open."""
    data, result = (
        None if getattr(argument, "__bound__", argument) is not argument else argument for argument in _arguments(kind)
    )
    return data, result


def _arguments(kind: type) -> tuple[Any, ...]:
    for generic in vars(kind).get("__orig_bases__", ()):
        origin, given = get_origin(generic), get_args(generic)
        if origin is Job:
            return given
        if isinstance(origin, type) and issubclass(origin, Job):
            meant = dict(zip(getattr(origin, "__parameters__", ()), given, strict=False))
            return tuple(meant.get(argument, argument) for argument in _arguments(origin))
    bases = [base for base in kind.__bases__ if issubclass(base, Job) and base is not Job]
    return _arguments(bases[0]) if bases else (None, None)

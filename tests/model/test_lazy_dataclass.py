"""Dataclasses that are made when they are first used."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, field, fields, replace
from threading import Barrier

import pytest

from taskqueue.model.lazy_dataclass import dataclass


def test_a_class_has_what_a_dataclass_has() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Point:
        """A place."""

        x: int
        y: int = 2
        seen: list[int] = field(default_factory=list)

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Made:
        """A place."""

        x: int
        y: int = 2
        seen: list[int] = field(default_factory=list)

    point = Point(x=1)

    assert set(vars(Point)) == set(vars(Made))
    assert (point, hash(Point)) == (Point(x=1), hash(Point))
    assert repr(point) == f"{Point.__qualname__}(x=1, y=2, seen=[])"
    assert replace(point, x=3) == Point(x=3)
    with pytest.raises(FrozenInstanceError, match="cannot assign to 'x' of Point"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del point.x


def test_fields_are_known_before_the_first_instance() -> None:
    @dataclass(frozen=True)
    class Point:
        x: int

    assert [one.name for one in fields(Point)] == ["x"]
    assert Point(1) == Point(1)


def test_the_signature_is_known_before_the_first_instance() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Point:
        x: int = 3

    assert str(inspect.signature(Point)) == "(*, x: 'int' = 3) -> None"
    assert str(inspect.signature(Point)) == "(*, x: 'int' = 3) -> None"


def test_a_class_has_no_signature_of_its_own_before_it_is_made_nor_after() -> None:
    @dataclass(frozen=True)
    class Point:
        x: int

    assert [hasattr(Point, "__signature__") for _ in range(2)] == [False, False]


def test_a_subclass_has_the_fields_of_its_base() -> None:
    @dataclass(frozen=True)
    class Base:
        x: int

    @dataclass(frozen=True)
    class Wider(Base):
        y: int = 0

    class Plain(Base):
        pass

    assert [one.name for one in fields(Wider)] == ["x", "y"]
    assert (Wider(1, 2).y, Plain(3).x) == (2, 3)


def test_a_class_with_a_constructor_of_its_own_keeps_it() -> None:
    @dataclass(frozen=True, init=False)
    class Square:
        side: int

        def __init__(self, area: int) -> None:
            object.__setattr__(self, "side", int(area**0.5))

    assert Square(9) == Square(9)
    assert Square(9).side == 3


def test_threads_that_use_a_class_first_at_the_same_time_all_get_whole_instances() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Point:
        x: int

    together = Barrier(8)

    def make(x: int) -> int:
        together.wait()
        return hash(Point(x=x))

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(make, [1] * 8))) == 1


def test_a_node_makes_all_classes_before_it_forks() -> None:
    script = """
import taskqueue.daemon.node.start
from taskqueue.model import lazy_dataclass
unmade = len(lazy_dataclass._unmade)
lazy_dataclass.make_all()
print(unmade > 10, lazy_dataclass._unmade)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert done.stdout.split() == ["True", "{}"]

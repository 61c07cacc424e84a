"""The class that a name means among the modules that are loaded; nothing is imported, and no code of modules runs."""

from __future__ import annotations

import json
import queue
import socket
import subprocess
import sys

import pytest

from taskqueue import CommandFailed, Fail, JobTimeout
from taskqueue.model.exception_names import defining_name, defining_names, name_of, names_of

LOADED = (json, queue, socket, subprocess)


class Outer:
    """Has an exception of its own, and one that code makes when it is asked."""

    class Inner(Exception):
        """An error."""

    @property
    def made(self) -> type[Exception]:
        raise AssertionError("it was asked")


def __getattr__(name: str) -> object:
    if name.startswith("Made"):
        raise AssertionError("a module may import when it is asked for a name that it does not have")
    raise AttributeError(name)


@pytest.mark.parametrize(
    ("name", "defining"),
    [
        ("json.JSONDecodeError", "json.decoder.JSONDecodeError"),
        ("json.decoder.JSONDecodeError", "json.decoder.JSONDecodeError"),
        ("queue.Empty", "_queue.Empty"),
        ("socket.error", "OSError"),
        ("IOError", "OSError"),
        ("builtins.OSError", "OSError"),
        ("subprocess.CalledProcessError", "subprocess.CalledProcessError"),
        ("taskqueue.Fail", "taskqueue.Fail"),
        ("taskqueue.CommandFailed", "taskqueue.CommandFailed"),
        ("taskqueue.JobTimeout", "taskqueue.JobTimeout"),
        ("taskqueue.errors.InvalidJob", "taskqueue.errors.InvalidJob"),
        (f"{__name__}.Outer.Inner", f"{__name__}.Outer.Inner"),
        (f"{__name__}.queue.Empty", "_queue.Empty"),
    ],
)
def test_a_name_means_the_class_that_is_loaded_under_it(name: str, defining: str) -> None:
    assert defining_name(name) == defining


@pytest.mark.parametrize(
    "name",
    [
        "json.JSONDecodError",
        "json.decoder",
        "json.loads",
        "json.loads.error",
        "no_such_module.Error",
        "xml.dom.minidom.NoSuchError",
        "taskqueue.NoSuchError",
        "taskqueue.Job",
        "NoSuchError",
        "print",
        f"{__name__}.MadeError",
        f"{__name__}.Outer.made",
    ],
)
def test_what_is_no_loaded_exception_class_means_nothing_and_is_not_imported(name: str) -> None:
    before = set(sys.modules)

    assert defining_name(name) is None
    assert set(sys.modules) == before


def test_a_class_has_one_name() -> None:
    kinds = (ValueError, Fail, JobTimeout, CommandFailed, json.JSONDecodeError)

    assert [name_of(kind) for kind in kinds] == [
        "ValueError",
        "taskqueue.Fail",
        "taskqueue.JobTimeout",
        "taskqueue.CommandFailed",
        "json.decoder.JSONDecodeError",
    ]


def test_the_client_finds_the_defining_names_of_what_it_has_loaded() -> None:
    names = names_of(["json.JSONDecodeError", "app.errors.Busy", "IOError", OSError])

    assert names == ("json.JSONDecodeError", "app.errors.Busy", "IOError", "OSError")
    assert defining_names(names) == ("json.decoder.JSONDecodeError",)

"""The folder and the module of an application are the ones by which its jobs are imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskqueue.cli import application_module
from taskqueue.errors import ConfigError


def test_the_application_s_folder_is_the_one_its_imports_begin_in(tmp_path: Path) -> None:
    package = tmp_path / "shop" / "mail"
    package.mkdir(parents=True)
    for file in (package / "jobs.py", package / "__init__.py", tmp_path / "shop" / "__init__.py", tmp_path / "app.py"):
        file.touch()

    assert application_module.folder_of(str(tmp_path / "app.py")) == tmp_path
    assert application_module.folder_of(str(package / "jobs.py")) == tmp_path
    assert application_module.module_of(str(tmp_path / "app.py")) == "app"
    assert application_module.module_of(str(package / "jobs.py")) == "shop.mail.jobs"
    assert application_module.module_of(str(package / "__init__.py")) == "shop.mail"


def test_a_module_is_found_from_here_or_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app.py").touch()
    monkeypatch.chdir(tmp_path)

    assert application_module.folder_of("app") == tmp_path
    assert application_module.folder_of("json.decoder") == tmp_path
    assert application_module.module_of("json.decoder") == "json.decoder"
    with pytest.raises(ConfigError, match="there is no module nowhere in "):
        application_module.folder_of("nowhere")


@pytest.mark.parametrize("name", ["calendar.py", "queue/jobs.py"])
def test_a_file_that_workers_would_look_up_in_the_standard_library_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.touch()
    if "/" in name:
        file.with_name("__init__.py").touch()
    top = name.removesuffix(".py").split("/")[0]

    with pytest.raises(ConfigError, match=f"would import {top} of the standard library instead: rename .* to my_{top}"):
        application_module.folder_of(str(file))

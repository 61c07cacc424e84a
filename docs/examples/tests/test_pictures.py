"""Thumbnails are made of covers."""

from pathlib import Path

import pytest
from PIL import Image
from shop.pictures import SIZES, ThumbnailJob

from taskqueue import Fail
from taskqueue.testing import Jobs


@pytest.fixture
def covers(folder: Path) -> Path:
    """Return the folder of covers, with one in it."""
    (folder / "covers").mkdir()
    Image.new("RGBA", (300, 600), "red").save(folder / "covers" / "momo.png")
    return folder / "covers"


def test_a_thumbnail_of_each_size_is_made(jobs: Jobs, covers: Path) -> None:
    assert jobs.perform(ThumbnailJob, {"name": "momo.png"}) == ["momo-64.jpg", "momo-200.jpg"]


@pytest.mark.parametrize("size", SIZES)
def test_a_thumbnail_keeps_the_shape_of_its_cover(jobs: Jobs, covers: Path, size: int) -> None:
    jobs.perform(ThumbnailJob, {"name": "momo.png"})

    with Image.open(covers / f"momo-{size}.jpg") as small:
        assert small.size == (size // 2, size)


def test_thumbnails_may_be_made_twice(jobs: Jobs, covers: Path) -> None:
    for _ in range(2):
        jobs.perform(ThumbnailJob, {"name": "momo.png"})

    assert sorted(path.name for path in covers.iterdir()) == ["momo-200.jpg", "momo-64.jpg", "momo.png"]


def test_a_file_that_is_no_picture_is_named(jobs: Jobs, covers: Path) -> None:
    (covers / "text.png").write_text("text")

    with pytest.raises(Fail, match="text.png is no picture"):
        jobs.perform(ThumbnailJob, {"name": "text.png"})

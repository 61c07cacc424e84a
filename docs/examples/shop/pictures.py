"""Makes thumbnails of book covers."""

from pathlib import Path

from PIL import Image, UnidentifiedImageError

from shop.settings import Settings
from taskqueue import Fail, Job

SIZES = (64, 200)


class ThumbnailJob(Job):
    """Makes the thumbnails of the cover ``name`` and returns their names; to make them twice does no harm."""

    options = {"queue": "images", "timeout": "1m"}

    def start(self) -> list[str]:
        folder, name = Settings().covers, Path(self.data["name"])
        made = []
        try:
            with Image.open(folder / name) as cover:
                for number, size in enumerate(SIZES, 1):
                    small = cover.convert("RGB")
                    small.thumbnail((size, size))
                    small.save(folder / f"{name.stem}-{size}.jpg.part", "JPEG")
                    (folder / f"{name.stem}-{size}.jpg.part").replace(folder / f"{name.stem}-{size}.jpg")
                    made.append(f"{name.stem}-{size}.jpg")
                    self.progress(100 * number / len(SIZES), f"{size} pixels")
        except UnidentifiedImageError as error:
            raise Fail(f"{name} is no picture") from error
        return made

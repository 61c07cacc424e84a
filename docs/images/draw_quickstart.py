"""Draw a real quickstart: ``python docs/images/draw_quickstart.py`` writes quickstart.svg beside this file."""

import os
import tempfile

from draw import HERE, draw, on_a_terminal

QUICKSTART = HERE.parents[1] / "bin" / "quickstart"


def main() -> None:
    """Run the quickstart with a state folder of its own and take the picture, up to the first of its three answers."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        # Without a terminal for the bar there are lines about the progress, which a picture can show.
        shown = on_a_terminal(["sh", "-c", f"exec '{QUICKSTART}' 2>/dev/null"])
    first, answer, _ = shown.split("Why is", 2)
    draw(f"$ bin/quickstart\n{first}Why is{answer.rstrip()}", title="bin/quickstart", file=HERE / "quickstart.svg")


if __name__ == "__main__":
    main()

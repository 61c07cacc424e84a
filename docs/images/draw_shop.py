"""Take the picture of the sample application: ``python docs/images/draw_shop.py`` writes shop.png beside this file.

It starts docs/examples/shop/start, which must not run yet, clicks what its page says, and takes the dashboard.
"""

import contextlib
import signal
import socket
import subprocess
import time

from draw import HERE, until
from draw_dashboard import chromium

SHOP, DASHBOARD = 8000, 8030


def main() -> None:
    """Use the shop for half a minute, and take the dashboard."""
    process = subprocess.Popen([HERE.parent / "examples/shop/start"], stdout=subprocess.DEVNULL)
    try:
        until(lambda: answers(SHOP) and answers(DASHBOARD))
        with chromium() as browser:
            page = browser.new_page(viewport={"width": 1280, "height": 860}, color_scheme="light")
            page.goto(f"http://127.0.0.1:{SHOP}")
            page.click("text=Import the catalogue")
            time.sleep(5)  # until the ordered book is there
            for button in ("Order", "Upload a cover", "Mail a report"):
                page.click(f"text={button}")
            time.sleep(12)  # the node looks for what needs somebody every 15 seconds
            page.goto(f"http://127.0.0.1:{DASHBOARD}")
            page.wait_for_selector("#content section")
            page.screenshot(path=str(HERE / "shop.png"))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def answers(port: int) -> bool:
    """Return whether a server listens there."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


if __name__ == "__main__":
    main()

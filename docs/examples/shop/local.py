"""Run the whole shop on this host: ``start`` does. In production each of these is a service of its own."""

import os
import signal
import subprocess
import sys
import tempfile
from email.message import EmailMessage
from pathlib import Path
from textwrap import indent

import uvicorn

from shop.services import MailServer, Wholesaler
from taskqueue import Scheduler

WEB, DASHBOARD = 8000, 8030
BOOKS = 600


def write_catalogue(file: Path) -> None:
    rows = (f"978{number:010},Volume {number}" for number in range(1, BOOKS + 1))
    file.write_text("\n".join(("isbn,title", *rows)), encoding="utf-8")


def show(mail: EmailMessage) -> None:
    text = mail.get_content().rstrip()
    print(f"mail to {mail['To']}: {mail['Subject']}", indent(text, "    "), sep="\n", flush=True)


def main() -> None:
    folder = Path(os.environ.get("SHOP_FOLDER") or tempfile.mkdtemp(prefix="shop-"))
    folder.mkdir(exist_ok=True)
    write_catalogue(folder / "catalogue.csv")
    with MailServer(show) as mails, Wholesaler(flaky=True) as wholesaler:
        os.environ |= {
            "SHOP_FOLDER": str(folder),
            "SHOP_SMTP": mails.address,
            "SHOP_WHOLESALER": wholesaler.address,
            "SHOP_IMPORT_PAUSE": "1",
            "TASKQUEUE_URL": str(folder / "shop.db"),
            "TASKQUEUE_RUNTIME_DIR": str(folder),
        }
        with Scheduler() as scheduler:
            scheduler.stats()  # makes the store, which must be there before the first table of the shop
        # The owner is told what needs somebody: a paused queue, a new error, a backlog that grows.
        alerts = f"mailto:owner@shop.example?smtp=smtp://{mails.address}&from=alerts@shop.example"
        node = ["node", "--schedules", "shop.report", "--notify", alerts, "--log-level", "error", "--max-children", "4"]
        dashboard = ["main", "web", "--listen", str(DASHBOARD)]
        commands = [[sys.executable, "-m", f"taskqueue.cli.{name}", *options] for name, *options in (node, dashboard)]
        children = [subprocess.Popen(command) for command in commands]
        print(f"shop: http://127.0.0.1:{WEB}  dashboard: http://127.0.0.1:{DASHBOARD}  files: {folder}", flush=True)
        print(f"for commands: export TASKQUEUE_URL={folder / 'shop.db'}", flush=True)
        try:
            uvicorn.run("shop.web:app", port=WEB, log_level="warning")  # until Ctrl-C
        finally:
            for child in children:
                child.send_signal(signal.SIGTERM)
            for child in children:
                child.wait()


if __name__ == "__main__":
    main()

"""The jobs of a shop, for the picture in the README: each is in another state when the picture is taken."""

import threading

from taskqueue import Job


class MailJob(Job):
    """End at once, or fail for good for an address that does not exist."""

    options = {"queue": "mail"}

    def start(self):
        if self.data["to"].endswith(".invalid"):
            raise ValueError(f"{self.data['to']} does not exist")
        return "sent"


class ReportJob(Job):
    """Come as far as was asked for, and stay there."""

    options = {"queue": "reports"}

    def start(self):
        self.progress(self.data["percent"], f"page {self.data['page']} of 20")
        threading.Event().wait()


class StockJob(Job):
    """Fail as long as the warehouse does not answer."""

    options = {"queue": "stock", "retry": 5, "retry_interval": 240}

    def start(self):
        raise ConnectionError("the warehouse does not answer")


class InvoiceJob(Job):
    """Fail for an order that has no price, again and again."""

    options = {"queue": "invoices", "retry": 2, "retry_interval": 0.5}

    def start(self):
        self.log.info("reading the order of customer %s", self.data["customer"])
        self.log.warning("customer %s has no address", self.data["customer"])
        return sum(line["price"] for line in self.data["lines"])


class BackupJob(Job):
    """Have no time before the night."""

    def start(self):
        return "kept"

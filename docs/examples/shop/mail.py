"""Sends mail; a server that is away is tried again, an address that is refused is not."""

import smtplib
from email.message import EmailMessage

from shop.settings import Settings
from taskqueue import Fail, Job, retry


class MailJob(Job):
    """Sends one mail to ``to``, with ``subject`` and ``text``; its id is the same in every attempt."""

    options = {"queue": "mail", "retry": retry.exponential(5, "30s", longest="1h")}

    def start(self) -> str:
        message = EmailMessage()
        message["From"] = Settings().owner
        message["To"] = self.data["to"]
        message["Subject"] = self.data["subject"]
        message["Message-ID"] = f"<{self.key}@shop.example>"
        message.set_content(self.data["text"])
        host, port = Settings().smtp_server
        with smtplib.SMTP(host, port, timeout=10) as server:
            try:
                server.send_message(message)
            except smtplib.SMTPRecipientsRefused as refused:
                raise Fail(f"{self.data['to']} is refused: {refused}") from refused
        return str(message["Message-ID"])

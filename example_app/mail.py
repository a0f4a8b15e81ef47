"""Writes the shop's mails, hands them to the SMTP server, and reads what the demo's has kept."""

from __future__ import annotations

import mailbox
import re
import smtplib
from dataclasses import dataclass
from email import policy
from email.headerregistry import Address
from email.message import EmailMessage
from email.parser import BytesParser
from email.utils import format_datetime
from email.utils import localtime
from email.utils import parseaddr
from pathlib import Path

from flask import current_app
from flask import render_template

from example_app.models import Learner


def compose(learner: Learner, template: str, *, message_id: str) -> EmailMessage:
    """Write the mail of templates/mail/<template>.txt, whose first line is the subject."""
    text = render_template(f"mail/{template}.txt", learner=learner, account=learner.account)
    subject, _, body = text.partition("\n")
    message = EmailMessage()
    message["Subject"] = subject
    message["From"] = current_app.config["EXAMPLE_MAIL_FROM"]
    message["To"] = Address(learner.name, addr_spec=learner.email)
    message["Date"] = format_datetime(localtime())
    message["Message-ID"] = message_id
    message["X-Template"] = template
    message.set_content(body.strip() + "\n")
    return message


def deliver(message: EmailMessage) -> None:
    """Return once the SMTP server has taken the mail; raise if it does not."""
    host, port = current_app.config["EXAMPLE_SMTP_HOST"], int(current_app.config["EXAMPLE_SMTP_PORT"])
    with smtplib.SMTP(host, port, timeout=10) as smtp:
        smtp.send_message(message)


@dataclass(frozen=True)
class ReceivedMail:
    message_id: str
    to: str
    template: str
    subject: str
    body: str


def read_mailbox(directory: Path) -> list[ReceivedMail]:
    """List the mails of a Maildir, oldest first."""
    parser = BytesParser(policy=policy.default)
    box = mailbox.Maildir(directory, factory=None, create=True)
    keys = sorted(box.keys(), key=_delivered_at)
    return [_received(parser.parsebytes(box.get_bytes(key))) for key in keys]


def _delivered_at(key: str) -> tuple[int, ...]:
    # "<second>.M<microsecond>P<process>Q<count>.<host>", none of them padded to a width.
    second, unique = key.split(".")[:2]
    return (int(second), *map(int, re.findall(r"\d+", unique)))


def _received(message: EmailMessage) -> ReceivedMail:
    return ReceivedMail(
        message_id=message["Message-ID"],
        to=parseaddr(message["To"])[1],
        template=message["X-Template"],
        subject=message["Subject"],
        body=message.get_content(),
    )

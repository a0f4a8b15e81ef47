"""An SMTP server that keeps every mail and sends none on: `python -m example_app.mail_sink`."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence
from pathlib import Path

from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Mailbox


def start(directory: Path, *, host: str = "127.0.0.1", port: int) -> Controller:
    """Serve SMTP from a thread until `stop()` is called on what this returns."""
    controller = Controller(Mailbox(directory), hostname=host, port=port)
    controller.start()
    return controller


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m example_app.mail_sink", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5025)
    parser.add_argument("--mailbox", type=Path, default=Path("mailbox"), help="a Maildir, made if missing")
    options = parser.parse_args(argv)

    # Blocked before the server's thread starts, which inherits it: only sigwait() gets them.
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)

    controller = start(options.mailbox, host=options.host, port=options.port)
    print(f"SMTP on {options.host}:{options.port}, mails in {options.mailbox}", flush=True)
    signal.sigwait(ends)
    controller.stop()


if __name__ == "__main__":
    main()

"""Somebody who uses the shop through its pages, for the demo's first learners and its check."""

from __future__ import annotations

import re
from types import TracebackType
from typing import Self

import requests

TIMEOUT = 20


class Visitor:
    def __init__(self, url: str) -> None:
        self._url = url
        self._session = requests.Session()
        # A proxy in the environment must not come between us and this machine.
        self._session.trust_env = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._session.close()

    def is_served(self) -> bool:
        try:
            return self._session.get(self._url, timeout=TIMEOUT).ok
        except requests.ConnectionError:
            return False

    def sign_up(self, name: str, card: str) -> int | None:
        """Return the learner's id, or None if they have signed up before."""
        email = f"{name.lower()}@example.com"
        page = self._post("/", "/signup", name=name, email=email, card=card, course="1")
        if page.status_code == 422 and "has signed up" in page.text:
            return None
        page.raise_for_status()
        return int(page.url.rpartition("/")[2])

    def renew(self, learner_id: int) -> None:
        self._press(learner_id, r"/accounts/\d+/renew")

    def finish_course(self, learner_id: int) -> None:
        self._press(learner_id, r"/enrolments/\d+/finish")

    def _press(self, learner_id: int, action: str) -> None:
        path = f"/learners/{learner_id}"
        page = self._session.get(self._url + path, timeout=TIMEOUT)
        page.raise_for_status()
        found = re.search(f'action="({action})"', page.text)
        if found is None:
            raise LookupError(f"{path} has no form for {action}")
        self._post(path, found[1]).raise_for_status()

    def _post(self, form: str, action: str, **fields: str) -> requests.Response:
        """Send a form with the token of the page it is on."""
        page = self._session.get(self._url + form, timeout=TIMEOUT)
        page.raise_for_status()
        token = re.search(r'name="csrf_token" value="([^"]+)"', page.text)
        if token is None:
            raise LookupError(f"{form} has no form")
        data = {"csrf_token": token[1], **fields}
        return self._session.post(self._url + action, data=data, timeout=TIMEOUT)

"""The client of the payment service."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import requests
from flask import current_app

#: Seconds to connect, seconds between two bytes of the answer.
TIMEOUT = (3.05, 20)


@dataclass(frozen=True)
class Receipt:
    id: str
    amount: Decimal


class PaymentUnavailable(Exception):
    """The payment service did not answer, or not with an answer: try again."""


class CardDeclined(Exception):
    """The bank says no: trying again will not help."""


def charge(card_token: str, amount: Decimal, *, idempotency_key: str) -> Receipt:
    """Charge a card, at most once for one key however often it is called."""
    url = f"{current_app.config['EXAMPLE_PAYMENTS_URL']}/charges"
    try:
        response = requests.post(
            url,
            json={"card": card_token, "amount": str(amount)},
            headers={"Idempotency-Key": idempotency_key},
            timeout=TIMEOUT,
        )
    except requests.RequestException as error:
        raise PaymentUnavailable(f"No answer from the payment service: {error}") from error

    if response.status_code == 402:
        raise CardDeclined(response.json()["message"])
    if response.status_code >= 500 or response.status_code == 429:
        raise PaymentUnavailable(f"The payment service answered {response.status_code}")
    response.raise_for_status()
    body = response.json()
    return Receipt(id=body["id"], amount=Decimal(body["amount"]))

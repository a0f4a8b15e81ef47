"""Which recorded calls a retry or a fork makes again, and which it keeps, in words."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass

from ... import phrases
from ...explain import Name
from ...explain import Text
from ...forgetting import failed_last
from ...forgetting import from_call
from ...runs import Call

#: Of so many calls a page tells what becomes of each.
MOST_CALLS = 10_000
#: Of those to go on from, so many at either end are offered.
_OFFERED = 100
_NAMED = 10


@dataclass(frozen=True, slots=True)
class Choice:
    """A call to go on from."""

    key: str
    label: str


@dataclass(frozen=True, slots=True)
class Choices:
    """The calls to go on from; `left_out` is how many are not among them."""

    calls: tuple[Choice, ...] = ()
    left_out: int = 0


def choices(calls: Sequence[Call], total: int) -> Choices:
    chosen = [*calls] if len(calls) <= 2 * _OFFERED else [*calls[:_OFFERED], *calls[-_OFFERED:]]
    listed = tuple(
        Choice(call.key, f"{phrases.number(call.number)} {phrases.cut(call.label, 100)}, {call.status}")
        for call in chosen
    )
    return Choices(listed, max(total - len(chosen), 0))


def retried(calls: Sequence[Call]) -> Iterator[Text]:
    """What a retry makes again from where the run stopped."""
    if len(calls) > MOST_CALLS:
        yield ("What failed last runs again, with fresh attempts. Every other recorded call is kept.",)
        return
    forgotten = set(failed_last(calls))
    again = [call for call in calls if call.key in forgotten]
    goes_on = [call for call in calls if call.status not in ("completed", "failed", "pushed")]
    stays = [call for call in calls if call.status == "failed" and call.key not in forgotten]
    if again:
        yield ("Runs again, with fresh attempts: ", *listed(again), "; then what follows in the code.")
    elif goes_on:
        yield ("Goes on with: ", *listed(goes_on), "; then what follows in the code.")
    elif calls:
        yield ("It goes on behind its last recorded call.",)
    else:
        yield ("Nothing is recorded: it begins at its beginning.",)
    yield from _kept([call for call in calls if call.status in ("completed", "pushed")])
    if stays:
        yield ("Stays failed, as the workflow dealt with it: ", *listed(stays), ".")


def retried_from(calls: Sequence[Call], key: str) -> Iterator[Text]:
    """What a retry from a call makes again."""
    if len(calls) > MOST_CALLS:
        yield from _too_many()
        return
    forgotten = set(from_call(calls, key))
    yield from _made_again([call for call in calls if call.key in forgotten])
    yield from _kept([call for call in calls if call.key not in forgotten])


def forked(calls: Sequence[Call], key: str) -> Iterator[Text]:
    """What a fork from a call makes again, and what it takes over."""
    if len(calls) > MOST_CALLS:
        yield from _too_many()
        return
    forgotten = set(from_call(calls, key))
    over = [call for call in calls if call.key not in forgotten and call.status in ("completed", "failed", "pushed")]
    taken = {call.key for call in over}
    yield from _made_again([call for call in calls if call.key not in taken])
    yield from _kept(over, "Taken over, and not run again: ")


def _too_many() -> Iterator[Text]:
    yield (
        "That call, what was recorded after it, and what follows in the code run again, whatever they did before. What "
        "was recorded before it is kept. The run has too many calls to list them.",
    )


def _made_again(calls: Sequence[Call]) -> Iterator[Text]:
    counted = phrases.several(len(calls), "recorded call")
    yield (f"Runs again, {counted}: ", *listed(calls), "; then what follows in the code.")
    done = [call for call in calls if call.kind == "step" and call.status != "pushed"]
    if done:
        yield ("What these steps did, they do a second time: ", *listed(done), ".")
    started = [call for call in calls if call.kind == "start"]
    if started:
        yield ("These start runs anew; those they started before go on as they are: ", *listed(started), ".")


def _kept(calls: Sequence[Call], words: str = "Kept, and not run again: ") -> Iterator[Text]:
    if calls:
        yield (words, *listed(calls), ".")


def listed(calls: Sequence[Call]) -> Text:
    """Numbers and names of calls; of many, the first ones and how many more."""
    text: Text = ()
    for call in calls[:_NAMED]:
        text = (*text, *((", ",) if text else ()), f"{phrases.number(call.number)} ", Name(call.label))
    more = len(calls) - _NAMED
    return (*text, f" and {phrases.number(more)} more") if more > 0 else text

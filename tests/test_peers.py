"""The comparison with other engines: its sums, its turns, and what becomes of a peer that cannot be measured."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from benchmarks.peers.comparison import Comparison
from benchmarks.peers.comparison import table
from benchmarks.peers.environments import make_environment
from benchmarks.peers.environments import Peer
from benchmarks.peers.environments import PeerUnavailable
from benchmarks.peers.processes import moving
from benchmarks.peers.processes import standing_still
from benchmarks.peers.processes import SubjectFailed
from benchmarks.peers.processes import SubjectProcess
from benchmarks.peers.scenarios import in_turns

RATES = Comparison("S2", "sqlite", "drain", "runs/s", "ours", [600.0, 900.0], {"A": [200.0, 90.0], "B": [100.0, 300.0]})
TIMES = Comparison("S4", "sqlite", "start", "ms", "ours", [2.0, 4.0], {"A": [6.0, 2.0], "B": [20.0, 40.0]})


def test_multiples_are_taken_round_by_round() -> None:
    assert RATES.multiples(RATES.peers["A"]) == [3.0, 10.0]
    assert RATES.best == [200.0, 300.0]
    assert RATES.multiples(RATES.best) == [3.0, 3.0]


def test_of_times_the_shorter_is_the_faster() -> None:
    assert TIMES.multiples(TIMES.peers["A"]) == [3.0, 0.5]
    assert TIMES.best == [6.0, 2.0]


def test_the_table_has_a_row_for_each_and_one_for_the_best() -> None:
    lines = table([RATES, Comparison("S3", "sqlite", "drain", "steps/s", "ours", [1.0], {})]).splitlines()

    assert [line.split("|")[5].strip() for line in lines[2:]] == ["ours", "A", "B", "the best peer", "ours"]
    assert [cell.strip() for cell in lines[3].split("|")[6:12]] == ["90.0", "145", "200", "3.0 x", "6.5 x", "10.0 x"]
    assert len({len(line) for line in lines}) == 1


def test_who_begins_moves_on_with_the_rounds() -> None:
    called: list[str] = []
    measured = in_turns(3, {name: partial(_note, called, name) for name in "ABC"})

    assert "".join(called) == "ABCBCACAB"
    assert measured == {"A": [1, 6, 8], "B": [2, 4, 9], "C": [3, 5, 7]}


def _note(called: list[str], name: str) -> int:
    called.append(name)
    return len(called)


def test_a_subject_that_fails_is_named_with_its_last_words() -> None:
    # Our own environment has none of the peers.
    with (
        SubjectProcess(Path(sys.executable), "no_such_peer", "client", "sqlite://") as client,
        pytest.raises(SubjectFailed, match=r"(?s)the client failed: .*no_such_peer") as failure,
    ):
        client.read("ready")

    assert failure.value.subject == "no_such_peer"


def test_a_subject_that_fails_to_set_up_is_found_out() -> None:
    with (
        SubjectProcess(Path(sys.executable), "no_such_peer", "setup", "sqlite://") as setting_up,
        pytest.raises(SubjectFailed, match="no_such_peer"),
    ):
        setting_up.finish()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_workers_move_in_their_turn_only_and_after_all(sleeper: subprocess.Popen[bytes]) -> None:
    with standing_still([sleeper.pid]):
        assert _stops(sleeper)
        with moving(sleeper.pid):
            assert not _is_stopped(sleeper)
        assert _stops(sleeper)
    assert not _is_stopped(sleeper)


def test_workers_go_on_when_the_measuring_fails(sleeper: subprocess.Popen[bytes]) -> None:
    with pytest.raises(ZeroDivisionError), standing_still([sleeper.pid]), moving(sleeper.pid):
        raise ZeroDivisionError

    assert not _is_stopped(sleeper)


def _stops(process: subprocess.Popen[bytes]) -> bool:
    """Wait until it has: a process takes note of the signal a moment later."""
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    return os.WIFSTOPPED(status)


def _is_stopped(process: subprocess.Popen[bytes]) -> bool:
    command = ["ps", "-o", "state=", "-p", str(process.pid)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "T"


def test_a_peer_that_cannot_be_installed_says_why(tmp_path: Path) -> None:
    peer = Peer("Nobody", "nobody", ("--no-such-option",))

    with pytest.raises(PeerUnavailable, match=r"(?s)Nobody could not be installed: .*no such option"):
        make_environment(peer, tmp_path)
    assert not (tmp_path / "nobody" / "requirements.txt").exists()


def test_an_environment_is_kept_and_a_broken_one_made_anew(tmp_path: Path) -> None:
    # Which is there already, so that nothing is fetched.
    peer = Peer("Nobody", "nobody", ("pip",))
    (tmp_path / "nobody").mkdir()
    (tmp_path / "nobody" / "left over").touch()

    python = make_environment(peer, tmp_path)
    assert python.exists()
    assert not (tmp_path / "nobody" / "left over").exists()

    kept = tmp_path / "nobody" / "kept"
    kept.touch()
    assert make_environment(peer, tmp_path) == python
    assert kept.exists()

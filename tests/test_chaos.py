"""A slice of `make chaos`, which takes ten minutes: workers and databases under faults, half a minute each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.command import KINDS

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_minute_of_faults_breaks_nothing(kind: str, tmp_path: Path) -> None:
    arguments = ["--database", kind, "--seconds", "30", "--seed", "1", "--folder", str(tmp_path / "chaos")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    ended = subprocess.run(
        [sys.executable, "-m", "chaos", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{kind}: 0 violations" in ended.stdout
    assert "worker killed (kill -9)" in ended.stdout

"""Runs and steps as JSON objects, secrets hidden."""

from __future__ import annotations

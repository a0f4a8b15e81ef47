"""Runs and steps as JSON objects, secrets hidden."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from flask_workflows.redaction import hides
from flask_workflows.redaction import redact_error
from flask_workflows.redaction import redact_text
from flask_workflows.runs import NotLoaded
from flask_workflows.runs import Run
from flask_workflows.runs import RunDetails
from flask_workflows.runs import RunError
from flask_workflows.runs import Step
from flask_workflows.runs import Undecodable

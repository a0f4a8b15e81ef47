"""What people ask of the tables: one run, a list, counts, who works.

Nothing here writes. Every query is served by an index at any size, or bounded and said to be so, and lists read no
payloads.
"""

from .audit import list_audit
from .beside import count_events_since
from .beside import count_messages
from .beside import count_same_cause
from .beside import read_awaited
from .beside import read_published
from .beside import read_received
from .beside import read_started
from .causes import count_cause
from .connection import database_now
from .connection import reading
from .criteria import workspace_names
from .events import EventPlace
from .events import EventQuery
from .events import EventState
from .events import InboxEvent
from .events import list_events
from .events import list_inbox
from .events import read_event
from .events import received_at
from .events import waited_names
from .failures import list_failures
from .health import oldest_due
from .lineage import count_unfinished_children
from .lineage import list_children
from .lineage import list_forks
from .lineage import read_relatives
from .metrics import measure_due
from .metrics import measure_live
from .metrics import measure_waits
from .metrics import workers_seen
from .operations import count_operation
from .operations import read_progress
from .operations import split_listed
from .operations import split_runs
from .overview import count_live
from .overview import count_paused
from .overview import count_unknown
from .overview import ended_by_quarter
from .overview import list_coming
from .overview import list_failed
from .overview import list_lost
from .overview import list_overdue
from .overview import read_due
from .overview import read_running
from .overview import read_signs
from .queues import count_queues
from .registry import count_unfinished
from .registry import recent_versions
from .rows import instant
from .run import count_ahead
from .run import count_steps
from .run import has_call
from .run import read_calls
from .run import read_details
from .run import read_failed_tries
from .run import read_heads
from .run import read_open_steps
from .run import read_run
from .run import read_step
from .run import read_step_error
from .run import read_steps
from .run import read_value
from .runs import COUNT_CAP
from .runs import count_matching
from .runs import count_newer
from .runs import count_runs
from .runs import list_runs
from .runs import newest_id
from .runs import selected_ids
from .runs import workflow_names
from .stats import finished_stats
from .stats import total_stats
from .step_pages import read_step_page
from .step_pages import StepPage
from .system import count_rows
from .system import due_queues
from .system import history_revisions
from .system import server_version
from .waits import list_timers
from .waits import list_wait_groups
from .waits import list_waits
from .waits import workflows_of
from .waking import waits_for
from .workers import find_worker
from .workers import list_held
from .workers import list_workers
from .workers import live_workers
from .workers import WORKER_SILENCE

__all__ = [
    "COUNT_CAP",
    "WORKER_SILENCE",
    "EventPlace",
    "EventQuery",
    "EventState",
    "InboxEvent",
    "StepPage",
    "count_ahead",
    "count_cause",
    "count_created",
    "count_events_since",
    "count_live",
    "count_matching",
    "count_messages",
    "count_newer",
    "count_operation",
    "count_paused",
    "count_queues",
    "count_rows",
    "count_runs",
    "count_same_cause",
    "count_steps",
    "count_unfinished",
    "count_unfinished_children",
    "count_unknown",
    "database_now",
    "due_queues",
    "ended_by_quarter",
    "find_worker",
    "finished_stats",
    "has_call",
    "history_revisions",
    "instant",
    "list_audit",
    "list_children",
    "list_coming",
    "list_events",
    "list_failed",
    "list_failures",
    "list_forks",
    "list_held",
    "list_inbox",
    "list_lost",
    "list_overdue",
    "list_runs",
    "list_timers",
    "list_wait_groups",
    "list_waits",
    "list_workers",
    "live_workers",
    "measure_due",
    "measure_live",
    "measure_waits",
    "newest_id",
    "oldest_due",
    "read_awaited",
    "read_calls",
    "read_details",
    "read_due",
    "read_event",
    "read_failed_tries",
    "read_heads",
    "read_open_steps",
    "read_progress",
    "read_published",
    "read_received",
    "read_relatives",
    "read_run",
    "read_running",
    "read_signs",
    "read_started",
    "read_step",
    "read_step_error",
    "read_step_page",
    "read_steps",
    "read_value",
    "reading",
    "received_at",
    "recent_versions",
    "selected_ids",
    "server_version",
    "split_listed",
    "split_runs",
    "total_stats",
    "waited_names",
    "waits_for",
    "workers_seen",
    "workflow_names",
    "workflows_of",
    "workspace_names",
]

"""Evidence from logs, metrics and answers of an engine, by one counting rule."""

from wiring.logs.log_context import GIVEN, scan
from wiring.logs.log_files import LogSummary, read_file
from wiring.logs.log_lines import LOOKED_FOR, read_lines, understood
from wiring.logs.prometheus import read_metrics
from wiring.logs.sglang_state import read_meta_info, read_server_info

__all__ = [
    "GIVEN",
    "LOOKED_FOR",
    "LogSummary",
    "read_file",
    "read_lines",
    "read_meta_info",
    "read_metrics",
    "read_server_info",
    "scan",
    "understood",
]

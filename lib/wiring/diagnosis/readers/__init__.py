"""Evidence from what people already have: logs, metrics and answers of an engine, by one counting rule."""

from wiring.diagnosis.readers.context import GIVEN, Context, Given, scan
from wiring.diagnosis.readers.files import Summary, read_file
from wiring.diagnosis.readers.log import LOOKED_FOR, read_lines, understood
from wiring.diagnosis.readers.pooling import Pool, pool
from wiring.diagnosis.readers.prometheus import read_metrics
from wiring.diagnosis.readers.sglang_state import read_meta_info, read_server_info

__all__ = [
    "GIVEN",
    "LOOKED_FOR",
    "Context",
    "Given",
    "Pool",
    "Summary",
    "pool",
    "read_file",
    "read_lines",
    "read_meta_info",
    "read_metrics",
    "read_server_info",
    "scan",
    "understood",
]

"""Pool records of acceptance as `read_file` does."""

from wiring.logs.evidence import AcceptanceRecord
from wiring.logs.pooling import AcceptancePool


def pooled(records) -> AcceptanceRecord:
    """Return the pool of the records of acceptance."""
    found = AcceptancePool({})
    for record in records:
        found.add(record)
    return found.result()

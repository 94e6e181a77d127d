"""Name the fault of a case from its evidence."""

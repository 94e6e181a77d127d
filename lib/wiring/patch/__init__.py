"""Plan a fix of the wiring, preview it, apply it to copies, verify and undo it."""

"""Evidence without a server: accuracy by depth, slot matching, fit of draft to target."""

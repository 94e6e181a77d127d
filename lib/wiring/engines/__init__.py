"""What each engine does with layer ids and arguments, by version, model family and phase; no engine is imported."""

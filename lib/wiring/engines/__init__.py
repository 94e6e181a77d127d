"""What each engine does, by version, model family and phase. Knowledge as data; no engine needed."""

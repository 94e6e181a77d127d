"""Accuracy of the draft alone on saved states: counting rules, evaluation, controls, replay, statistics."""

"""Figures, widgets and the HTML report."""

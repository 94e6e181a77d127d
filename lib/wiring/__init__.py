"""The EAGLE-3 wiring workbook: from a draft that crawls in production to the cause, the cure and the proof."""

__version__ = "0.1.0"

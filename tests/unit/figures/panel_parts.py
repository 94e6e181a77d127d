"""The widgets inside a panel."""


def inside(box):
    """The box and all widgets in it, outer ones first."""
    queue = [box]
    for widget in queue:
        queue += getattr(widget, "children", ())
    return queue


def by_description(box):
    """The widgets that have a description, by it."""
    return {widget.description: widget for widget in inside(box) if getattr(widget, "description", "")}

"""What lies on disk: draft checkpoints, target folders, training states; and how files are written."""

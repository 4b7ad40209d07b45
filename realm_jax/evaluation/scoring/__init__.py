"""From lines of predictions to figures: means, intervals and comparisons."""

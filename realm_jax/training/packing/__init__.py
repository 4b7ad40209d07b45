"""Token sequences laid out in rows, in a few shapes that are compiled."""

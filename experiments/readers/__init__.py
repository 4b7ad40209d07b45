"""Compares readers that point with readers that write, in the demo's world."""

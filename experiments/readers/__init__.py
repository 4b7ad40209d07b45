"""Compares extractive readers with readers that write, in the demo's world."""

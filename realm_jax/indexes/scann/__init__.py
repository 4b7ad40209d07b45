"""Approximate search with ScaNN, over trees that are trained here."""

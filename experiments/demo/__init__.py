"""The demo's stages and controls, and the report of their results."""

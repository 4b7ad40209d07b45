"""The demo's stages and controls, and the report of what they measured."""

"""The sidecar, which embeds the corpus and publishes generations."""

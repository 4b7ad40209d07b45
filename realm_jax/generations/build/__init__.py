"""The sidecar: it embeds the corpus and publishes generations."""

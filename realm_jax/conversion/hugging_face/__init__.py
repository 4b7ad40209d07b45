"""Models in the formats of Hugging Face."""

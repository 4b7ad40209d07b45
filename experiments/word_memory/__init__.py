"""New facts without training, by a memory of masked words or REALM's index."""

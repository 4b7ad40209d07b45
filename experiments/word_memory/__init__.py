"""New facts without training: a memory of masked words, and REALM's index."""

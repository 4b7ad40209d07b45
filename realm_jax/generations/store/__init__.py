"""Generations on disk: manifests, vectors, publication and retention."""

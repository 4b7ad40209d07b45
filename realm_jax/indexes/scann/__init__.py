"""Approximate search with ScaNN, over trees that we train and write ourselves.

ScaNN (Guo et al. 2020, arXiv 1908.10396) searches a tree in three steps: it
picks the leaves nearest to a query, scores their vectors by 4-bit codes, and
scores the best of those again with the vectors themselves. Its own builder
makes such a tree in one call. Ours does it by default, for these reasons:

- Speed. Its k-means moves centroids to where a leaf is worth splitting, so that
  fewer leaves have to be searched: 1.2 and 1.7 times the queries per second of
  ScaNN's own trees over the vectors of two trained models, at a recall@8 of
  0.95. Assigning leaves and codes runs on the builder's accelerator.
- Memory. ScaNN's builder needs all vectors at once, in float32. Ours reads the
  corpus in parts and writes memory-mapped files.

benchmarks/README.md has all figures and the commands that measure them. Where
another version of ScaNN is installed than the one whose private formats `trees`
writes, its own builder builds.
"""

"""Approximate search with ScaNN, over trees that we train and write ourselves.

ScaNN (Guo et al. 2020, arXiv 1908.10396) searches a tree in three steps: it
picks the leaves nearest to a query, scores their vectors by 4-bit codes, and
scores the best of those again with the vectors themselves. Its own builder
makes such a tree in one call. We do without it, by default, for these reasons:

- Memory. ScaNN's builder needs all vectors at once, in float32. Ours reads the
  corpus in parts and writes memory-mapped files: 13.4 million blocks of 128
  dimensions took 5.2 GB at most.
- Speed. Our k-means moves centroids to where a leaf is worth splitting, which
  finds the natural groups of the vectors, so fewer leaves have to be searched:
  1.8 times the queries per second of FAISS's inverted lists at a million
  blocks, and 2.7 times at 13.4 million, at a recall@8 of 0.95 or more.
  Assigning leaves and codes runs on the builder's accelerator.
- Choices. The number of leaves is chosen by building trees over a sample of the
  corpus, and the next generations reuse leaves and codebooks.

benchmarks/README.md has all figures and the commands that measure them.

Reading order: `settings`, `config`, `tree_builder` with `tuning`, `tree` with
`partitions` and `product_codes`, `files`, and `index`.

The price is that `files` depends on private formats, which were read from
ScaNN 1.4.2; `tree.json` alone is our own.

The stock builder (`stock`) builds if another version of ScaNN is installed, or
with `ScannConfig.builder = "stock"`. It uses ScaNN's public interface alone, in
memory, without a choice of leaves and without reuse. How much of its tree is
searched is still chosen by measuring.
"""

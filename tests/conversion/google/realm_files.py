"""What Google released of REALM and ORQA, in small and with random values."""

import json

import numpy as np

from tests.conversion.google import checkpoint_files as files
from tests.conversion.imported import import_weights

# The names that the released modules have, by how often each was wrapped.
REALM = {"scope": "module/module/", "norm": "LayerNorm"}
ICT = {"scope": "", "norm": "layer_normalization"}


def run_import(source, target, **options):
  """`import_weights` of the kind tf_realm."""
  return import_weights("tf_realm", str(source), target, **options)


def module(path, *, scope, norm, seed=0, **settings):
  """A retriever's module; returns its variables."""
  variables = files.embedder(scope, norm=norm, seed=seed)
  # So close together that the epsilon of the LayerNorm shows.
  variables[f"{scope}dense/kernel"] *= 0.01
  variables[f"{scope}dense/bias"] *= 0.01
  files.write_module(path, variables, **settings)
  return variables


def fine_tuned(path, **settings):
  """As open QA leaves a model; its vocabulary is with its modules."""
  variables = files.fine_tuned(**settings)
  folder = path / "export" / "best_default" / "checkpoint"
  files.save(folder / "model.ckpt-1000", files.with_adam(variables))
  (path / "params.json").write_text(
    json.dumps({"reader_seq_len": 40, "max_span_width": 4})
  )
  files.write_pieces(path / "vocab.txt")
  return variables


def release(path, *, num_blocks=30):
  """A retriever with the vectors of its blocks, their texts and titles."""
  module(path / "embedder", **REALM)
  rng = np.random.default_rng(4)
  vectors = rng.standard_normal((num_blocks, files.PROJECTION), np.float32)
  files.save(
    path / "embedder" / "encoded" / "encoded.ckpt", {"block_emb": vectors}
  )
  texts = [f"the bridge of velt {i}.".encode() for i in range(num_blocks)]
  files.write_records(path / "blocks.tfr", texts)
  files.write_records(path / "titles.tfr", [b"Velt"] * num_blocks)
  return vectors, texts

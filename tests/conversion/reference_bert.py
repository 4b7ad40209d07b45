"""BERT's last hidden states in numpy, from weights by Google's names."""

from collections.abc import Callable, Mapping

import numpy as np

from tests.models import numpy_bert

Variables = Mapping[str, np.ndarray]


def dense(x: np.ndarray, v: Variables, name: str) -> np.ndarray:
  return x @ v[f"{name}/kernel"].astype(np.float64) + v[f"{name}/bias"]


def norm(x: np.ndarray, v: Variables, name: str, eps: float) -> np.ndarray:
  parameters = {"scale": v[f"{name}/gamma"], "bias": v[f"{name}/beta"]}
  return numpy_bert.layer_norm(x, parameters, eps)


def last_hidden(
  v: Variables,
  tokens: list[int],
  *,
  types: list[int] | None = None,
  heads: int,
  gelu: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
  """Returns the last hidden states of one text, in float64.

  Args:
    v: Variables by names that begin with `embeddings/` and `encoder/`; kernels
      are [in, out].
    tokens: Token ids without padding.
    types: Token types; by default 1 after the first [SEP].
    heads: Number of attention heads.
    gelu: Activation function.
  """
  types = numpy_bert.segments(tokens) if types is None else types
  x = (
    v["embeddings/word_embeddings"][tokens].astype(np.float64)
    + v["embeddings/position_embeddings"][: len(tokens)]
    + v["embeddings/token_type_embeddings"][types]
  )
  x = norm(x, v, "embeddings/LayerNorm", 1e-12)
  length, hidden = x.shape
  layers = len({n.split("/")[1] for n in v if n.startswith("encoder/")})
  for i in range(layers):
    layer = f"encoder/layer_{i}"
    query, key, value = (
      dense(x, v, f"{layer}/attention/self/{name}").reshape(length, heads, -1)
      for name in ("query", "key", "value")
    )
    scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(hidden // heads)
    context = np.einsum("hqk,khd->qhd", numpy_bert.softmax(scores), value)
    attended = dense(
      context.reshape(length, hidden), v, f"{layer}/attention/output/dense"
    )
    x = norm(x + attended, v, f"{layer}/attention/output/LayerNorm", 1e-12)
    inner = gelu(dense(x, v, f"{layer}/intermediate/dense"))
    outer = dense(inner, v, f"{layer}/output/dense")
    x = norm(x + outer, v, f"{layer}/output/LayerNorm", 1e-12)
  return x

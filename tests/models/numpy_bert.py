"""A second BERT, in plain numpy and float64, from the paper's formulas."""

import jax
import numpy as np

PAD, UNK, CLS, SEP, MASK = range(5)


def random_parameters(params, *, seed=0):
  """The same tree with every leaf drawn anew, biases and scales included."""
  leaves, structure = jax.tree.flatten(params)
  rng = np.random.default_rng(seed)
  return jax.tree.unflatten(
    structure,
    [rng.normal(0, 0.3, leaf.shape).astype(np.float32) for leaf in leaves],
  )


def as_float64(params):
  """Every leaf as float64."""
  return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)


def dense(x, params):
  return x @ params["kernel"] + params["bias"]


def layer_norm(x, params, epsilon):
  mean = x.mean(-1, keepdims=True)
  variance = ((x - mean) ** 2).mean(-1, keepdims=True)
  normal = (x - mean) / np.sqrt(variance + epsilon)
  return normal * params["scale"] + params["bias"]


def gelu(x):
  """The approximation of Hendrycks and Gimpel (2016)."""
  return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def softmax(x):
  x = np.exp(x - x.max(-1, keepdims=True))
  return x / x.sum(-1, keepdims=True)


def segments(tokens):
  """0 until the first [SEP] is passed."""
  passed, result = 0, []
  for token in tokens:
    result.append(passed)
    if token == SEP:
      passed = 1
  return result


def encode(tokens, params, config):
  """Hidden states of one sequence of token ids, without its padding.

  Args:
    tokens: a list of ids, none of them padding.
    params: of a `BertEncoder`.
    config: its configuration; sizes, heads and epsilon are read from it.
  """
  p = as_float64(params)
  length = len(tokens)
  size = config.hidden_size // config.num_heads
  x = np.stack(
    [
      p["word_embeddings"][token]
      + p["position_embeddings"][position]
      + p["type_embeddings"][segment]
      for position, (token, segment) in enumerate(
        zip(tokens, segments(tokens), strict=True)
      )
    ]
  )
  x = layer_norm(x, p["embedding_norm"], config.layer_norm_eps)
  for i in range(config.num_layers):
    layer = p[f"layer_{i}"]
    attention = layer["attention"]
    context = np.zeros((length, config.hidden_size))
    query, key, value = (
      dense(x, attention[name]) for name in ("query", "key", "value")
    )
    for head in range(config.num_heads):
      part = slice(head * size, (head + 1) * size)
      weights = softmax(query[:, part] @ key[:, part].T / np.sqrt(size))
      context[:, part] = weights @ value[:, part]
    attended = dense(context, attention["output"])
    x = layer_norm(x + attended, layer["attention_norm"], config.layer_norm_eps)
    outer = dense(gelu(dense(x, layer["up"])), layer["down"])
    x = layer_norm(x + outer, layer["output_norm"], config.layer_norm_eps)
  return x


def padded(rows, length):
  """Lists of ids as one padded array."""
  return np.array([row + [PAD] * (length - len(row)) for row in rows], np.int32)

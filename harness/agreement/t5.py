"""Compares imported T5 models with transformers' values.

`harness/peers/t5.py` creates the models, their inputs and these values.
"""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from harness.agreement.comparison import (
  Row,
  differences,
  gradient_cosines,
  relative,
  unequal,
)
from realm_jax.models.decoding import generate
from realm_jax.models.packing import (
  TokenSequences,
  lay_out,
  lengths_of,
  plan_bins,
)
from realm_jax.models.sequences import Sequences, padded
from realm_jax.models.t5 import T5, cross_attention, log_likelihood
from realm_jax.weights.mapped_weights import flattened
from realm_jax.weights.name_maps import mapped_tensors
from realm_jax.weights.t5 import read_t5, table_of

VARIANTS = ("v1_0", "v1_1")
_EARLY_STOPPING = {"False": False, "True": True, "never": "never"}


def packed(token_ids: np.ndarray) -> Sequences:
  """Packs sequences into the smallest number of bins."""
  ids = np.arange(len(token_ids), dtype=np.uint32)
  tokens, count = TokenSequences(token_ids, ids), len(token_ids)
  length = token_ids.shape[-1]
  lengths = lengths_of(tokens, groups=1)
  plan = plan_bins(lengths, bin_length=length, num_bins=count)
  needed = int(plan.needed_bins.max())
  plan = plan_bins(lengths, bin_length=length, num_bins=needed)
  return lay_out(plan, tokens, num_bins=needed)


def compare_variant(folder: Path, variant: str) -> Iterator[Row]:
  """Compares one of the variants in a folder."""
  what, folder = f"T5 {variant}", folder / variant
  with np.load(folder / "expected.npz", allow_pickle=False) as arrays:
    expected = dict(arrays)
  config, params, _ = read_t5(folder)
  model = T5(config)
  inputs = expected["inputs"].astype(np.int32)
  targets = jnp.asarray(expected["targets"], jnp.int32)
  _, fused, length = inputs.shape
  inputs = inputs.reshape(-1, length)
  is_token, is_target = inputs != 0, np.asarray(targets) != 0

  @functools.partial(jax.jit, static_argnames="fused")
  def graded(params: Any, sequences: Sequences, fused: int) -> Any:
    def loss(params: Any) -> Any:
      logits = model.apply({"params": params}, sequences, targets, fused=fused)
      return -log_likelihood(logits, targets).sum() / is_target.sum(), logits

    return jax.value_and_grad(loss, has_aux=True)(params)

  encoded = jax.jit(functools.partial(model.apply, method="encode"))(
    {"params": params}, padded(jnp.asarray(inputs))
  )
  yield differences(
    f"{what}: encoder",
    encoded[is_token],
    expected["encoded"].reshape(encoded.shape)[is_token],
  )
  their_gradient = {
    entry.path: array.T if entry.is_transposed else array
    for entry in mapped_tensors(table_of(config), "torch")
    for name in entry.names
    if (array := expected.get(f"gradient/{name}")) is not None
  }
  for layout, sequences in (
    ("padded", padded(jnp.asarray(inputs))),
    ("packed", packed(inputs)),
  ):
    (loss, logits), gradient = graded(params, sequences, fused=fused)
    name = f"{what}, Fusion-in-Decoder, {layout}"
    yield differences(
      f"{name}: logits", logits[is_target], expected["logits"][is_target]
    )
    yield relative(f"{name}: loss", loss, expected["loss"])
    yield gradient_cosines(
      f"{name}: gradient", jax.device_get(flattened(gradient)), their_gradient
    )

  @jax.jit
  def remember(params: Any) -> Any:
    memory = model.apply(
      {"params": params}, packed_inputs, method="encode_memory"
    )
    return memory, memory.fused(fused)

  packed_inputs = packed(inputs)
  of_each, memory = remember(params)
  repeated = jnp.repeat(targets, fused, axis=0)
  alone = jax.jit(functools.partial(model.apply, method="decode"))(
    {"params": params}, of_each, repeated
  )
  theirs = expected["alone"].reshape(alone.shape)
  is_repeated = np.repeat(is_target, fused, axis=0)
  yield differences(
    f"{what}, each passage alone: logits",
    alone[is_repeated],
    theirs[is_repeated],
  )
  attention = jax.jit(functools.partial(cross_attention, model, fused=fused))(
    params, memory, targets
  )
  for measure, ours in attention._asdict().items():
    yield differences(f"{what}: {measure}", ours, expected[measure])
  yield from _compare_texts(what, model, params, memory, expected)


def _compare_texts(
  what: str, model: T5, params: Any, memory: Any, expected: Any
) -> Iterator[Row]:
  """Compares the outputs of greedy and beam search."""
  searches: dict[str, Any] = {}
  for key, theirs in expected.items():
    kind, _, name = key.partition("/")
    if kind != "texts":
      continue
    early, _, penalty = name.partition("/")
    choices: dict[str, Any] = {}
    if penalty:
      choices = {
        "num_beams": 4,
        "num_texts": theirs.shape[1],
        "early_stopping": _EARLY_STOPPING[early],
      }
    if early not in searches:
      length = theirs.shape[-1]
      searches[early] = jax.jit(
        functools.partial(generate, model, max_tokens=length, **choices)
      )
    settings = {"length_penalty": float(penalty)} if penalty else {}
    texts = searches[early](params, memory, **settings)
    yield unequal(f"{what}, search {name}: texts", texts.token_ids, theirs)
    if penalty:
      scores = expected[f"scores/{name}"]
      largest = np.abs(scores).max()
      yield differences(
        f"{what}, search {name}: scores by the largest",
        *(texts.scores / largest, scores / largest),
      )

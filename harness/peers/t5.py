"""Creates random T5 models, and the values that transformers computes for them.

    .venv-peers/bin/python -m harness.peers.t5 --output_dir=out/hf_t5

Each model is a folder written by `save_pretrained`, in which `expected.npz` has
questions with passages (`inputs` [b k l]) and texts (`targets` [b t]). For
Fusion-in-Decoder, in which each decoder attends to the k passages of its
question, it has the logits, the loss, its gradients, cross-attention, and the
outputs of greedy and beam search. `alone` has a text's logits for each passage.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import T5Config, T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from harness.peers.random_models import (
  EXPECTED,
  PAD_ID,
  gradients,
  randomize,
  save_arrays,
)

_END_ID = 1
_NOT_SCORED = -100  # A label that torch's cross entropy ignores.
_NEW_TOKENS = 9
_HEAD_SIZE = 6
_NUM_BEAMS, _NUM_TEXTS = 4, 2
_PENALTIES = (-1.0, 0.6, 2.0)
_EARLY_STOPPING = (False, True, "never")
# Settings of the variants.
VARIANTS: dict[str, dict[str, Any]] = {
  "v1_0": {"feed_forward_proj": "relu"},
  "v1_1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}
# Arguments of T5Config; then the number of questions in a batch, the number of
# passages for each, the lengths of passages and texts; and a factor for logits.
SIZES: dict[str, tuple[dict[str, int], tuple[int, int, int, int], float]] = {
  "tiny": (
    {
      "vocab_size": 37,
      "d_model": 20,
      "d_kv": _HEAD_SIZE,
      "d_ff": 28,
      "num_layers": 2,
      "num_decoder_layers": 3,
      "num_heads": 3,
      "relative_attention_num_buckets": 10,
      "relative_attention_max_distance": 19,
    },
    (5, 3, 23, 7),
    4.0,
  ),
  # The defaults of T5Config are the sizes of T5 small.
  "small": (
    {},
    (3, 4, 150, 12),
    1.0,
  ),
}


def _random_tokens(
  rng: np.random.Generator, shape: tuple[int, ...], vocab_size: int
) -> np.ndarray:
  """Draws padded sequences with end tokens; the first has the full length."""
  tokens = rng.integers(3, vocab_size, shape)
  lengths = rng.integers(2, shape[-1] + 1, shape[:-1])
  lengths.flat[0] = shape[-1]
  place = np.arange(shape[-1])
  tokens[place >= lengths[..., None]] = PAD_ID
  tokens[place == lengths[..., None] - 1] = _END_ID
  return tokens


@torch.no_grad()
def _cross_attention(
  model: T5ForConditionalGeneration, arguments: dict[str, Any], passages: int
) -> dict[str, torch.Tensor]:
  """Computes the two measures of passages in `T5.CrossAttention`."""
  inputs = []
  layers = [block.layer[1].EncDecAttention for block in model.decoder.block]
  hooks = [
    layer.register_forward_hook(
      lambda _, args, named, __: inputs.append(
        (args[0], named["key_value_states"])
      ),
      with_kwargs=True,
    )
    for layer in layers
  ]
  model(**arguments)
  for hook in hooks:
    hook.remove()
  is_token = arguments["attention_mask"].bool()
  is_target = arguments["labels"] != _NOT_SCORED
  first, weighted = torch.zeros(2, *is_token.shape)
  for layer, (hidden, memory) in zip(layers, inputs, strict=True):
    query, key, value = (
      layer_of(x).unflatten(-1, (layer.n_heads, -1)).transpose(1, 2)
      for layer_of, x in (
        (layer.q, hidden),
        (layer.k, memory),
        (layer.v, memory),
      )
    )
    scores = query @ key.transpose(2, 3)
    first += scores[:, :, 0].mean(1) / len(layers)
    scores = scores.masked_fill(~is_token[:, None, None], -torch.inf)
    of_values = scores.softmax(-1) * value.norm(dim=-1)[:, :, None]
    of_values = (of_values.mean(1) * is_target[..., None]).sum(1)
    weighted += of_values / is_target.sum(1, keepdim=True) / len(layers)

  def by_passage(x: torch.Tensor) -> torch.Tensor:
    return (x * is_token).unflatten(-1, (passages, -1)).sum(-1)

  tokens = by_passage(torch.ones_like(first))
  return {
    "first_score": by_passage(first) / tokens,
    "weighted_norm": by_passage(weighted),
  }


@torch.no_grad()
def _make_end_probable(
  model: T5ForConditionalGeneration, ids: torch.Tensor, labels: torch.Tensor
) -> None:
  """Makes the end of texts probable, so searches end at different times."""
  output = model(ids, labels=labels, output_hidden_states=True)
  hidden = output.decoder_hidden_states[-1].flatten(0, 1).mean(0)
  if model.config.tie_word_embeddings:
    hidden = hidden * model.config.d_model**-0.5
  score = output.logits.logsumexp(-1).mean() - 2.0
  model.lm_head.weight[_END_ID] = hidden * score / hidden.square().sum()


def make(output_dir: Path, variant: str, size: str) -> None:
  """Creates one model."""
  sizes, (batch, passages, length, target_length), factor = SIZES[size]
  torch.manual_seed(1)
  rng = np.random.default_rng(0)
  config = T5Config(**sizes, **VARIANTS[variant], decoder_start_token_id=PAD_ID)
  model = randomize(T5ForConditionalGeneration(config))
  with torch.no_grad():
    model.decoder.final_layer_norm.weight *= factor
    # Keeps the scale of scores for larger heads.
    for name, weight in model.named_parameters():
      if name.endswith("Attention.q.weight"):
        weight *= (_HEAD_SIZE / config.d_kv) ** 0.5
    if config.tie_word_embeddings:
      model.decoder.final_layer_norm.weight *= config.d_model**0.5
  shape = batch, passages, length
  inputs = _random_tokens(rng, shape, config.vocab_size)
  targets = _random_tokens(rng, (batch, target_length), config.vocab_size)
  ids = torch.from_numpy(inputs).flatten(0, 1)
  mask = (ids != PAD_ID).long()
  labels = torch.from_numpy(targets).clone()
  labels[labels == PAD_ID] = _NOT_SCORED

  _make_end_probable(model, ids, labels.repeat_interleave(passages, 0))
  model.save_pretrained(output_dir / variant)
  hidden = model.encoder(ids, mask).last_hidden_state
  with torch.no_grad():
    alone = model(
      encoder_outputs=BaseModelOutput(hidden),
      attention_mask=mask,
      labels=labels.repeat_interleave(passages, 0),
    ).logits
  fused = BaseModelOutput(hidden.reshape(batch, -1, config.d_model))
  arguments = {
    "encoder_outputs": fused,
    "attention_mask": mask.reshape(batch, -1),
    "labels": labels,
  }
  output = model(**arguments)
  output.loss.backward()
  expected = {
    "inputs": inputs,
    "targets": targets,
    "encoded": hidden.unflatten(0, (batch, passages)),
    "alone": alone.unflatten(0, (batch, passages)),
    "logits": output.logits,
    "loss": output.loss,
    **_cross_attention(model, arguments, passages),
    **gradients(model),
  }
  searches: list[tuple[str, dict[str, Any]]] = [("greedy", {"num_beams": 1})]
  searches += [
    (
      f"{early}/{penalty}",
      {
        "num_beams": _NUM_BEAMS,
        "num_return_sequences": _NUM_TEXTS,
        "length_penalty": penalty,
        "early_stopping": early,
      },
    )
    for early, penalty in itertools.product(_EARLY_STOPPING, _PENALTIES)
  ]
  for name, choices in searches:
    texts = model.generate(
      encoder_outputs=BaseModelOutput(fused.last_hidden_state.detach()),
      attention_mask=arguments["attention_mask"],
      max_new_tokens=_NEW_TOKENS,
      do_sample=False,
      return_dict_in_generate=True,
      output_scores=True,
      **choices,
    )
    tokens = np.zeros((len(texts.sequences), _NEW_TOKENS), np.int64)
    # Without the start token.
    tokens[:, : texts.sequences.shape[1] - 1] = texts.sequences[:, 1:]
    expected[f"texts/{name}"] = tokens.reshape(batch, -1, _NEW_TOKENS)
    if texts.get("sequences_scores") is not None:
      expected[f"scores/{name}"] = texts.sequences_scores.unflatten(
        0, (batch, -1)
      )
  save_arrays(output_dir / variant / EXPECTED, expected)


def make_all(output_dir: Path, *, size: str) -> None:
  """Makes all models in one of `SIZES`."""
  for variant in VARIANTS:
    make(output_dir, variant, size)


def main() -> None:
  """Makes all models."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--output_dir", type=Path, required=True)
  make_all(parser.parse_args().output_dir, size="small")


if __name__ == "__main__":
  main()

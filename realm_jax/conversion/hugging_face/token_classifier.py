"""Taggers in Hugging Face's format: BERT with a token-classification head.

Nothing here trains such a model, and its vocabulary need not be the corpus's,
so it gets no MODEL_DIR: it is read as it was published.
"""

import re
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from realm_jax.conversion.config_file import ConfigFile
from realm_jax.conversion.errors import ConversionError
from realm_jax.conversion.hugging_face.config import (
  read_bert_config,
  require_vocabulary_size,
)
from realm_jax.conversion.hugging_face.directory import (
  open_tensors,
  read_model_config,
)
from realm_jax.conversion.hugging_face.tokenizer import read_cased_or_uncased
from realm_jax.conversion.mapping import Feed, read_parameters
from realm_jax.conversion.names import Dialect, token_classifier
from realm_jax.conversion.parameters import flattened, nested
from realm_jax.models.bert import TokenClassifier
from realm_jax.models.parameters import Params
from realm_jax.models.sequences import padded
from realm_jax.text.wordpieces import WordpieceVocabulary

_CLASS = "BertForTokenClassification"
_ENCODER, _CLASSIFIER = "bert/", "classifier"
# What older versions of transformers wrote, too.
_LEFTOVERS = {
  r"bert\.pooler\..*": "token classification has no pooler",
  r"bert\.embeddings\.(position|token_type)_ids": ("computed here, not stored"),
}


class LabelledModel(NamedTuple):
  """A token classifier with its parameters, vocabulary and labels.

  `labels` are in the order of the logits, such as `O`, `B-PER`, `I-PER`.
  """

  module: TokenClassifier
  params: Params
  vocabulary: WordpieceVocabulary
  labels: tuple[str, ...]


def read_token_classifier(directory: Path) -> LabelledModel:
  """Reads the directory of a `BertForTokenClassification`.

  Raises:
    ConversionError: The directory holds no such model, or its files do not fit
      each other.
    VocabularyError: The vocabulary cannot be used.
  """
  config = read_model_config(directory)
  named = config.get("architectures") or ["nothing"]
  if not isinstance(named, list) or named[0] != _CLASS:
    raise ConversionError(
      f"{config.where} has architectures={named}; want [{_CLASS!r}], BERT that "
      "was fine-tuned to tag tokens"
    )
  labels = _labels(config)
  vocabulary = read_cased_or_uncased(directory)
  require_vocabulary_size(config, len(vocabulary.pieces))
  bert = read_bert_config(config).for_vocabulary(
    vocab_size=vocabulary.vocab_size, separator_id=vocabulary.sep_id
  )
  rules = token_classifier(
    Dialect.TORCH, bert, _ENCODER, classifier=_CLASSIFIER
  )
  module = TokenClassifier(bert, num_labels=len(labels))
  feed = Feed(open_tensors(directory), rules, _LEFTOVERS, str(directory))
  # Traced without arguments, it uses no device: see `tagging.bert_tagger`.
  shapes = jax.eval_shape(
    lambda: module.init(jax.random.key(0), padded(jnp.ones((1, 3), jnp.int32)))
  )
  parameters, _ = read_parameters(
    [feed],
    {
      path: tuple(leaf.shape)
      for path, leaf in flattened(nn.unbox(shapes["params"])).items()
    },
    expected_fresh={},
  )
  return LabelledModel(module, nested(parameters), vocabulary, labels)


def _labels(config: ConfigFile) -> tuple[str, ...]:
  """Returns the labels of `id2label` in the order of their ids."""
  found = config.get("id2label")
  by_id = {
    int(key): label
    for key, label in (found.items() if isinstance(found, dict) else ())
    if isinstance(label, str) and re.fullmatch(r"\d+", key)
  }
  if not by_id or sorted(by_id) != list(range(len(by_id))):
    raise ConversionError(
      f"{config.where} has id2label={found!r}; want a label for each id from "
      '0, such as {"0": "O", "1": "B-PER", …}'
    )
  return tuple(by_id[index] for index in range(len(by_id)))

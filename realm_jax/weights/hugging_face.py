"""Models in directories of Hugging Face: BERT, REALM, and taggers.

| class | becomes |
| --- | --- |
| BertModel and its heads, DPR's encoders | retriever and reader |
| ModernBertModel, ModernBertForMaskedLM | retriever and reader |
| RealmEmbedder, RealmScorer | the retriever |
| RealmKnowledgeAugEncoder | the reader, with its masked-LM head |
| RealmReader | the reader, with its span head |
| RealmForOpenQA | both, and `block_emb` holds the vectors of blocks |
| BertForSequenceClassification | a reranker, beside a run's retriever |
| BertForTokenClassification | a tagger, which gets no MODEL_DIR |
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from realm_jax.models import AnyArray
from realm_jax.models.bert import BertConfig, TokenClassifier
from realm_jax.models.cross_encoder import CrossEncoder
from realm_jax.models.parameters import Params
from realm_jax.models.reader import BertReader
from realm_jax.models.sequences import padded
from realm_jax.settings import PositiveFloat, PositiveInt
from realm_jax.text.vocabulary import BertVocabulary
from realm_jax.text.vocabulary_files import read_vocabulary
from realm_jax.weights import WeightsError, modernbert, name_maps
from realm_jax.weights.hf_files import (
  CONFIG,
  JsonFile,
  read_bert_config,
  read_open_qa_lengths,
)
from realm_jax.weights.mapped_weights import (
  BLOCK_VECTORS,
  UNUSED,
  Encoder,
  Source,
  flattened,
  nested,
)
from realm_jax.weights.name_maps import READER, Module
from realm_jax.weights.sentence_transformers import read_model
from realm_jax.weights.tensor_files import open_tensors

_WORDS = "embeddings.word_embeddings.weight"
# Encoders in each class of REALM: prefix and roles.
_TOWERS = ("query", "block")
_REALM: Mapping[str, Sequence[tuple[str, Sequence[str]]]] = {
  "RealmEmbedder": [("", _TOWERS)],
  "RealmScorer": [("embedder.", _TOWERS), ("query_embedder.", ())],
  "RealmKnowledgeAugEncoder": [("", (READER,))],
  "RealmReader": [("", (READER,))],
  "RealmForOpenQA": [("embedder.", _TOWERS), ("reader.", (READER,))],
}
_PROJECTION = [
  Module("projection", "cls.dense"),
  Module("projection_norm", "cls.LayerNorm"),
]
_SPAN_HEAD = [
  Module("span_head/projection", "qa_outputs.dense_intermediate"),
  Module("span_head/norm", "qa_outputs.layer_normalization"),
  Module("span_head/score", "qa_outputs.dense_output"),
]
_SPAN_READERS = ("RealmReader", "RealmForOpenQA")


def open_bert(directory: Path) -> Source:
  """Opens a BERT, with the settings of its vectors in modules.json."""
  sentence = read_model(directory)
  folder = directory / sentence.folders[0]
  file = JsonFile(folder / CONFIG)
  around = {
    f"{name}.{key}": tensor
    for name in sentence.folders[1:]
    for key, tensor in open_tensors(directory / name, optional=True).items()
  }
  if file.entries.get("model_type") == "modernbert":
    source = modernbert.open_encoder(folder, sentence.around, sentence.fields)
    return source._replace(tensors={**source.tensors, **around})
  # DPR's question and context encoders are BERTs with another name.
  file.get("model_type", ("bert", "dpr"), "bert")
  file.get("projection_dim", (None, 0))
  bert = read_bert_config(file)
  tensors = open_tensors(folder)
  encoders = []
  for name in tensors:
    if not f".{name}".endswith(f".{_WORDS}"):
      continue
    prefix = name.removesuffix(_WORDS)
    # The head is next to `bert.`, not in it.
    head = f"{prefix.removesuffix('bert.')}cls.predictions"
    has_head = f"{head}.transform.dense.weight" in tensors
    has_pooler = f"{prefix}pooler.dense.weight" in tensors
    table = name_maps.bert(prefix, bert.num_layers, sentence.around)
    pooling = "pooler" if has_pooler else "cls"
    encoders.append(
      Encoder(
        *(prefix, bert, (*_TOWERS, READER), table),
        name_maps.masked_lm_head(head) if has_head else (),
        {"pooling": pooling, **sentence.fields},
      )
    )
  tensors |= around
  vocabulary = read_vocabulary(folder, normalizer="bert")
  return Source(tensors, "torch", encoders, [vocabulary])


def open_realm(directory: Path) -> Source:
  """Opens one of transformers' classes of REALM."""
  file = JsonFile(directory / CONFIG)
  file.get("model_type", ("realm",))
  (name,) = file.get("architectures", tuple([name] for name in _REALM))
  bert = read_bert_config(file, default_activation="gelu_new")
  retriever_fields = {
    "pooling": "pooler",
    "projection_size": file.get("retriever_proj_size", PositiveInt, 128),
    # transformers uses the same epsilon for both.
    "projection_norm_eps": bert.layer_norm_eps,
  }
  reader_fields = {
    "span_size": file.get(
      "span_hidden_size", PositiveInt, BertReader.span_size
    ),
    "span_norm_eps": file.get(
      "reader_layer_norm_eps", PositiveFloat, BertReader.span_norm_eps
    ),
  }
  if reads_spans := name in _SPAN_READERS:
    reader_fields |= read_open_qa_lengths(file, bert)
  tensors = open_tensors(directory)
  towers = _REALM[name]
  # A scorer without a query embedder may have its embedder twice.
  if name == "RealmScorer" and any(
    not np.array_equal(tensor, tensors.get(key.removeprefix("query_"), ()))
    for key, tensor in tensors.items()
    if key.startswith("query_embedder.")
  ):
    towers = [("embedder.", ("block",)), ("query_embedder.", ("query",))]
  around = [*_PROJECTION, *(_SPAN_HEAD if reads_spans else ())]
  encoders = []
  for scope, roles in towers:
    prefix = f"{scope}realm."
    table = name_maps.bert(
      prefix, bert.num_layers, name_maps.below(around, theirs=scope)
    )
    # A reader that scores spans has a separate, untrained decoder.
    head = name_maps.masked_lm_head(
      scope + name_maps.HEAD, has_tied_decoder=not reads_spans
    )
    encoders.append(
      Encoder(
        *(prefix, bert, roles, table, head, retriever_fields, reader_fields)
      )
    )
  records = directory / "block_records.npy"
  return Source(
    tensors,
    "torch",
    encoders,
    # These are Google's weights, trained with TensorFlow Text's normalization.
    [read_vocabulary(directory, normalizer="tensorflow_text")],
    tensors.get(BLOCK_VECTORS),
    records if records.is_file() else None,
  )


class LabelledModel(NamedTuple):
  """A token classifier with its parameters, vocabulary and labels.

  `labels` are in the order of the logits, such as `O`, `B-PER`, `I-PER`.
  """

  module: TokenClassifier
  params: Params
  vocabulary: BertVocabulary
  labels: tuple[str, ...]


def read_token_classifier(directory: Path) -> LabelledModel:
  """Reads the directory of a `BertForTokenClassification`.

  Raises:
    VocabularyError: The vocabulary cannot be used.
  """
  file = JsonFile(directory / CONFIG)
  file.get("architectures", (["BertForTokenClassification"],))
  by_id = file.get("id2label", dict[str, str])
  labels = tuple(by_id.get(str(i), "") for i in range(len(by_id)))
  if not all(labels):
    raise WeightsError(
      f"{file.path} has id2label={by_id}; want a label for each id from 0, "
      'such as {"0": "O", "1": "B-PER"}'
    )
  bert, words = _bert_with_vocabulary(directory)
  module = TokenClassifier(bert, num_labels=len(labels))
  tokens = functools.partial(jnp.ones, (1, 3), jnp.int32)
  params, _ = _read_classifier(
    directory,
    bert,
    lambda: module.init(jax.random.key(0), padded(tokens()))["params"],
  )
  return LabelledModel(module, params, words, labels)


class ScoringModel(NamedTuple):
  """A cross-encoder with its parameters and vocabulary, and what was read."""

  module: CrossEncoder
  params: Params
  vocabulary: BertVocabulary
  lines: Sequence[str]


def read_cross_encoder(
  directory: Path, ignore: Sequence[str] = ()
) -> ScoringModel:
  """Reads the directory of a `BertForSequenceClassification` of one label.

  Args:
    directory: Folder with config.json, the weights and vocab.txt.
    ignore: As in `ImportConfig`.

  Raises:
    WeightsError: It is another model, or has other labels.
    VocabularyError: The vocabulary cannot be used.
  """
  file = JsonFile(directory / CONFIG)
  file.get("architectures", (["BertForSequenceClassification"],))
  by_id = file.get("id2label", dict[str, str], {"0": "", "1": ""})
  if len(by_id) != 1:
    raise WeightsError(
      f"{file.path} has {len(by_id)} labels; want one, the score of a "
      "cross-encoder such as cross-encoder/ms-marco-MiniLM-L-6-v2"
    )
  bert, words = _bert_with_vocabulary(directory)
  module = CrossEncoder(bert, joint_length=min(bert.max_positions, 512))
  params, lines = _read_classifier(
    directory,
    bert,
    lambda: module.init_parameters(
      jax.random.key(0), query_length=3, block_length=4
    ),
    ignore,
  )
  return ScoringModel(module, params, words, lines)


def _bert_with_vocabulary(
  directory: Path,
) -> tuple[BertConfig, BertVocabulary]:
  words = read_vocabulary(directory, normalizer="bert")
  bert = read_bert_config(JsonFile(directory / CONFIG))
  return bert.for_vocabulary(
    vocab_size=words.size, separator_id=words.sep_id
  ), words


def _read_classifier(
  directory: Path,
  bert: BertConfig,
  init: Callable[[], Params],
  ignore: Sequence[str] = (),
) -> tuple[Params, list[str]]:
  """Reads the parameters of a BERT with a classifier above it."""
  # Traced without arguments, it uses no device: see `text.bert_tagger`.
  flat = jax.eval_shape(lambda: flattened(init()))
  parameters, lines = name_maps.read(
    open_tensors(directory),
    name_maps.bert(
      "bert.", bert.num_layers, [Module("classifier", "classifier")]
    ),
    {path: tuple(leaf.shape) for path, leaf in flat.items()},
    system="torch",
    allowed={**UNUSED, **dict.fromkeys(ignore, "named by --ignore")},
  )
  if fresh := flat.keys() - parameters.keys():

    @jax.jit
    def initialize() -> dict[str, AnyArray]:
      values = flattened(init())
      return {path: values[path] for path in fresh}

    parameters |= jax.device_get(initialize())
  return nested(parameters), lines

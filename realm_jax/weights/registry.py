"""Formats of weights for import and export, and the options of an import."""

import dataclasses
import functools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from etils import epath

from realm_jax.settings import PositiveFloat, PositiveInt, Seed, require_valid
from realm_jax.storage.json_files import JsonValue
from realm_jax.storage.paths import is_remote
from realm_jax.weights import WeightsError

HF_BERT, T5, HF_RERANKER = "hf_bert", "hf_t5", "hf_reranker"
# By format: a description of its inputs, and `MODULE:FUNCTION`, which opens the
# input at a path as a `mapped_weights.Source`.
FORMATS: Mapping[str, tuple[str, str]] = {
  HF_BERT: (
    "a directory with config.json, model.safetensors or pytorch_model.bin "
    "(whole or in shards), and vocab.txt or tokenizer.json: BERT, MiniLM, "
    "Contriever, E5, BGE, DPR, ModernBERT and the like, with or without the "
    "modules.json of sentence-transformers",
    "realm_jax.weights.hugging_face:open_bert",
  ),
  "hf_realm": (
    "a directory of transformers' REALM: RealmEmbedder, RealmScorer, "
    "RealmKnowledgeAugEncoder, RealmReader or RealmForOpenQA",
    "realm_jax.weights.hugging_face:open_realm",
  ),
  "tf_bert": (
    "a directory with Google's bert_config.json, bert_model.ckpt.* and "
    "vocab.txt, or the prefix of a checkpoint",
    "realm_jax.weights.google:open_bert",
  ),
  "tf_realm": (
    "Google's release of REALM or ORQA: a TF-Hub module (embedder, bert, ict), "
    "a directory of modules, or a fine-tuned model",
    "realm_jax.weights.google:open_realm",
  ),
  T5: (
    "a reader that writes: a directory with config.json, the weights of a T5 "
    "(1.0, 1.1, LM-adapted, Flan-T5, mT5; whole or in shards) and its "
    "spiece.model, or the files of Fusion-in-Decoder, Atlas, t5x or Mesh "
    "TensorFlow, with --vocab=spiece.model. --retriever adds the retriever of "
    "a run",
    "realm_jax.weights.t5:read_t5",
  ),
  HF_RERANKER: (
    "a cross-encoder: a directory of a BertForSequenceClassification with one "
    "label and its vocab.txt, such as cross-encoder/ms-marco-MiniLM-L-6-v2. "
    "--retriever adds the other components of a run",
    "realm_jax.weights.hugging_face:read_cross_encoder",
  ),
}
# Names of models on Hugging Face's hub, and the files that an import reads.
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_HUB_FILES = ("*.json", "vocab.txt", "*/vocab.txt", "spiece.model")
# Weights in a folder, whole or in shards: the first pattern with a match.
_HUB_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
# Formats of exports.
TARGETS: Mapping[str, str] = {
  "sentence_transformers": (
    "the retriever, as a directory for sentence-transformers: BERT, pooling, "
    "BERT's pooler, REALM's projection with its LayerNorm, and normalization, "
    "if the retriever has them. Its README.md explains how to pass documents "
    "to the model. If the retriever has two towers, --tower chooses one; each "
    "needs its own directory"
  ),
  HF_BERT: (
    "the reader with its masked-LM head, as Hugging Face's BertForMaskedLM"
  ),
  T5: (
    "a reader that writes, as Hugging Face's T5ForConditionalGeneration, with "
    "its spiece.model"
  ),
  "vectors": (
    "the vectors of all blocks in a snapshot: vectors.npy, with a row for each "
    "block, blocks.jsonl, with the id and title of each row, and vectors.json, "
    "which describes them"
  ),
  "faiss": (
    "the same, with index.faiss, a flat index of inner products, in place of "
    "vectors.npy"
  ),
}


@dataclasses.dataclass(frozen=True)
class ImportConfig:
  """Options of an import; None takes the value from the input.

  Attributes:
    format: Format of the input, one of `FORMATS`.
    input: Local directory, the prefix of a TensorFlow checkpoint, or the name
      of a model on Hugging Face's hub.
    block_input: Second input, for a separate block tower.
    revision: Commit, tag or branch of an input on the hub; None takes the
      newest.
    block_revision: Commit, tag or branch of the second input.
    retriever: MODEL_DIR from which to take the retriever and vocabulary (with a
      reranker, also the reader), to combine them with an imported reader
      (hf_t5) or reranker.
    parts: Parts to import, retriever and reader; None takes all in the input.
    tensor_prefix: Prefix of the names of an encoder's embeddings, if an input
      has several encoders.
    vocab: Vocabulary file; None takes the input's, which some tf_realm inputs
      lack.
    pooling: How hidden states become a vector, `pooler`, `cls`, `mean` or
      `last`; without modules.json, the default is the pooler if the weights
      have one, or else cls.
    projection_size: Size of a REALM projection to add, with random values; None
      adds none.
    normalize: Whether vectors have length 1.
    score_scale: Factor of inner products, by default 1; training normalized
      vectors needs more.
    query_prefix: Text that the model expects before a query.
    block_prefix: Text that the model expects before a block.
    title_separator: Whether [SEP] separates title and body; by default yes, as
      in REALM, except for sentence-transformers.
    token_types: Whether tokens after the first [SEP] are of type 1; by default
      yes, as in REALM, except for sentence-transformers.
    separate_towers: Whether queries and blocks have separate towers, which
      start from the same weights if the input has only one.
    corpus_dir: Corpus to make from the blocks that were released with the
      weights; their vectors become snapshot 0. None imports no blocks.
    block_records: File of the blocks' texts, block_records.npy or TFRecords
      (blocks.tfr); None takes the input's own.
    block_titles: TFRecords of the blocks' titles (titles.tfr); None leaves them
      empty.
    index: Kind of index for the vectors, exact or scann; None takes `scann`.
    ignore: Regular expression for whole names of tensors that may be unused,
      and for whole paths of parameters that may start from random values.
    seed: Seed of parameters that start from random values.
  """

  format: str
  input: epath.PathLike
  block_input: epath.PathLike | None = None
  revision: str | None = None
  block_revision: str | None = None
  retriever: epath.PathLike | None = None
  parts: Sequence[str] | None = None
  tensor_prefix: str | None = None
  vocab: epath.PathLike | None = None
  pooling: Literal["pooler", "cls", "mean", "last"] | None = None
  projection_size: PositiveInt | None = None
  normalize: bool | None = None
  score_scale: PositiveFloat | None = None
  query_prefix: str | None = None
  block_prefix: str | None = None
  title_separator: bool | None = None
  token_types: bool | None = None
  separate_towers: bool = False
  corpus_dir: epath.PathLike | None = None
  block_records: epath.PathLike | None = None
  block_titles: epath.PathLike | None = None
  index: Literal["exact", "scann"] | None = None
  ignore: Sequence[str] = ()
  seed: Seed = 0

  def __post_init__(self) -> None:
    require_valid(self)
    for pattern in self.ignore:
      try:
        re.compile(pattern)
      except re.error as error:
        raise WeightsError(f"--ignore={pattern}: {error}") from error
    flags = {
      field.name: f"--{field.name}"
      for field in dataclasses.fields(self)
      if getattr(self, field.name) != field.default
    }
    alone = {T5: "vocab", HF_RERANKER: "ignore"}
    if self.format in alone:
      allowed = "input", "retriever", "revision", alone[self.format]
      if others := flags.keys() - {*allowed, "format"}:
        raise WeightsError(
          f"{', '.join(flags[n] for n in flags if n in others)} is not for "
          f"{self.format}, which takes {', '.join(sorted(allowed))}; leave it "
          "out"
        )
    elif self.retriever is not None:
      raise WeightsError(
        f"--retriever is for a component by itself (--from={T5} or "
        f"{HF_RERANKER}); leave it out"
      )
    of_blocks = ("block_records", "block_titles", "index")
    without_corpus = [flags[name] for name in of_blocks if name in flags]
    if self.corpus_dir is None and without_corpus:
      raise WeightsError(
        f"{', '.join(without_corpus)} without --corpus_dir, the corpus to make "
        "from the released blocks; add it, or leave these out"
      )


@functools.cache
def _fetched(name: str, revision: str | None) -> Path:
  """Returns the folder of a model on the hub, fetched once in a process."""
  try:
    from huggingface_hub import snapshot_download as fetch

    folder = Path(fetch(name, revision=revision, allow_patterns=_HUB_FILES))
    lacking = {file.parent for file in folder.rglob("config.json")}
    for pattern in _HUB_WEIGHTS:
      patterns = [str(one.relative_to(folder) / pattern) for one in lacking]
      # The same commit, even if a branch has moved on.
      fetch(name, revision=folder.name, allow_patterns=sorted(patterns))
      lacking = {one for one in lacking if not [*one.glob(pattern)]}
  # Errors of the hub, of the network and of the disk.
  except (ImportError, OSError, ValueError) as error:
    at = f" at {revision}" if revision else ""
    reason = " ".join(str(error).split())
    raise WeightsError(
      f"{name} does not exist, and Hugging Face's hub returns no model with "
      f"this name{at} ({reason}); check the name, the network, and whether the "
      "hub's client is installed (pip install 'realm_jax[hub]')"
    ) from error
  return folder


def locate(path: epath.PathLike, revision: str | None = None) -> Path:
  """Returns the local path of an input.

  If the path does not exist and looks like a model's name on Hugging Face's
  hub, such as `intfloat/e5-base-v2`, this downloads a revision of the model or
  takes it from the hub's cache, if the extra `hub` is installed. The name of
  the folder is the commit.

  Raises:
    WeightsError: The weights are in a bucket, or do not exist.
  """
  if is_remote(path):
    raise WeightsError(
      f"{path} is in a bucket, but weights are read from a local disk; copy "
      f"them first (gcloud storage cp --recursive {path} .)"
    )
  local, name = Path(path), str(path)
  # The path may be the prefix of a TensorFlow checkpoint, which is not a file.
  if local.exists() or [*local.parent.glob(f"{local.name}.*")]:
    if revision is not None:
      raise WeightsError(
        f"{path} is on this disk, but the revision {revision} is for a model "
        "on the hub; leave the flag out, or name the model"
      )
    return local
  if not _HUB_NAME.fullmatch(name):
    raise WeightsError(
      f"--input or --block_input: {path} does not exist; check the path"
    )
  return _fetched(name, revision)


def origin(config: ImportConfig) -> dict[str, JsonValue]:
  """Returns the options of an import, and the commits of its inputs."""
  told = {
    name: os.fspath(value) if isinstance(value, os.PathLike) else value
    for name, value in vars(config).items()
    if value != getattr(ImportConfig, name, None)
  }
  inputs = {
    "revision": (config.input, config.revision),
    "block_revision": (config.block_input, config.block_revision),
  }
  for name, (path, revision) in inputs.items():
    if path is not None and (folder := locate(path, revision)) != Path(path):
      told[name] = folder.name
  return told

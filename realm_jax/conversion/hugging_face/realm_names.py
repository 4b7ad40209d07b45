"""Names of REALM's modules in transformers, for import and for export.

`realm.` is BERT, `cls.` is the projection of an embedder or else a masked-LM
head, and `qa_outputs.` scores spans.
"""

from realm_jax.conversion import names
from realm_jax.conversion.names import TORCH, Rule
from realm_jax.models.bert import BertConfig

ENCODER = "realm."
HEAD = "cls/predictions"
# Prefixes in a scorer, and in the two parts of open QA.
EMBEDDER, QUERY_EMBEDDER, READER = "embedder.", "query_embedder.", "reader."
BLOCK_VECTORS = "block_emb"
# The parts of a model that a class holds.
PARTS_OF = {
  "RealmEmbedder": ("retriever",),
  "RealmScorer": ("retriever",),
  "RealmKnowledgeAugEncoder": ("reader",),
  "RealmReader": ("reader",),
  "RealmForOpenQA": ("retriever", "reader"),
}
# The classes whose reader scores spans.
SPAN_READERS = ("RealmReader", "RealmForOpenQA")


def embedder(
  config: BertConfig, *, tower: str, theirs: str = ""
) -> tuple[Rule, ...]:
  """Returns the rules of a RealmEmbedder.

  Args:
    config: Configuration of the encoder.
    tower: Name of the tower: one of `SHARED_TOWER` or `SEPARATE_TOWERS`.
    theirs: Prefix of its names: nothing, or `embedder.`.
  """
  ours = f"retriever/{tower}"
  return (
    *names.bert_tower(
      TORCH, config, pooling="pooler", ours=ours, theirs=theirs + ENCODER
    ),
    *TORCH.dense(f"{ours}/projection", f"{theirs}cls/dense"),
    *TORCH.layer_norm(f"{ours}/projection_norm", f"{theirs}cls/LayerNorm"),
  )


def reader(config: BertConfig, architecture: str) -> tuple[Rule, ...]:
  """Returns the rules of the reader in a class.

  The decoder of RealmKnowledgeAugEncoder is a copy of the word embeddings.
  Those of the classes that score spans are separate, and nothing uses them.
  """
  theirs = READER if architecture == "RealmForOpenQA" else ""
  encoder, head = theirs + ENCODER, theirs + HEAD
  if architecture not in SPAN_READERS:
    return names.masked_lm(
      TORCH, config, ours="reader", theirs=encoder, head=head
    )
  span_head, outputs = "reader/span_head", f"{theirs}qa_outputs"
  return (
    *names.encoder(TORCH, config, ours="reader/encoder", theirs=encoder),
    *names.masked_lm_head(TORCH, ours="reader/masked_lm_head", theirs=head),
    *TORCH.dense(f"{span_head}/projection", f"{outputs}/dense_intermediate"),
    *TORCH.layer_norm(f"{span_head}/norm", f"{outputs}/layer_normalization"),
    *TORCH.dense(f"{span_head}/score", f"{outputs}/dense_output"),
  )

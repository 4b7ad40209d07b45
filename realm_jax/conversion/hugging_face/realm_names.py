"""The names of REALM's parts in transformers, for import and for export.

`realm.` is BERT; `cls.` is the projection of an embedder, and a masked-LM head
elsewhere; `qa_outputs.` scores spans.
"""

from realm_jax.conversion import names
from realm_jax.conversion.names import TORCH, Rule
from realm_jax.models.bert import BertConfig

ENCODER = "realm."
HEAD = "cls/predictions"
# Of a scorer, and of the two parts of open QA.
EMBEDDER, QUERY_EMBEDDER, READER = "embedder.", "query_embedder.", "reader."
BLOCK_VECTORS = "block_emb"
# The parts that a class gives, and takes.
PARTS_OF = {
  "RealmEmbedder": ("retriever",),
  "RealmScorer": ("retriever",),
  "RealmKnowledgeAugEncoder": ("reader",),
  "RealmReader": ("reader",),
  "RealmForOpenQA": ("retriever", "reader"),
}


def embedder(
  config: BertConfig, *, ours: str, theirs: str = ""
) -> tuple[Rule, ...]:
  """The rules of a RealmEmbedder.

  Args:
    config: the encoder.
    ours: the tower's path: `retriever/tower`.
    theirs: what precedes its names: nothing, or `embedder.`.
  """
  return (
    *names.bert_tower(
      TORCH, config, pooling="pooler", ours=ours, theirs=theirs + ENCODER
    ),
    *names.dense(TORCH, f"{ours}/projection", f"{theirs}cls/dense"),
    *names.layer_norm(
      TORCH, f"{ours}/projection_norm", f"{theirs}cls/LayerNorm"
    ),
  )


def masked_lm(
  config: BertConfig, *, is_tied: bool, theirs: str = ""
) -> tuple[Rule, ...]:
  """The rules of the encoder and the masked-LM head of a reader.

  Args:
    config: the encoder.
    is_tied: whether the decoder is a copy of the word embeddings there, as in
      RealmKnowledgeAugEncoder; RealmReader has one that nothing uses.
    theirs: what precedes its names: nothing, or `reader.`.
  """
  encoder, head = theirs + ENCODER, theirs + HEAD
  if is_tied:
    return names.masked_lm(
      TORCH, config, ours="reader", theirs=encoder, head=head
    )
  return names.encoder(
    TORCH, config, ours="reader/encoder", theirs=encoder
  ) + names.masked_lm_head(TORCH, ours="reader/masked_lm_head", theirs=head)


def span_head(*, theirs: str = "") -> tuple[Rule, ...]:
  """The rules of a reader's span head."""
  outputs = f"{theirs}qa_outputs"
  return (
    *names.dense(
      TORCH, "reader/span_head/projection", f"{outputs}/dense_intermediate"
    ),
    *names.layer_norm(
      TORCH, "reader/span_head/norm", f"{outputs}/layer_normalization"
    ),
    *names.dense(TORCH, "reader/span_head/score", f"{outputs}/dense_output"),
  )

"""What identifies a block: a stable id, and a hash of its contents."""

import hashlib

from realm_jax.corpus.building.sources.seen_ids import hash63


def block_id(corpus_name: str, document_id: str, ordinal: int) -> int:
  """Returns the stable id of a document's block: 63 bits, never negative.

  The name of the corpus is part of it, so that documents of two corpora may
  have the same ids.
  """
  return hash63(f"{corpus_name}\0{document_id}\0{ordinal}")


def content_hash(title: str, body: bytes) -> int:
  """Returns the first 64 bits of a SHA-1 of title and body, signed.

  Two blocks with the same title and body have the same hash, in whichever
  corpus they are. Released REALM hashes the same text to find the blocks that
  a sentence was taken from.
  """
  digest = hashlib.sha1(b"%b <sep> %b" % (title.encode(), body)).digest()
  return int.from_bytes(digest[:8], "big", signed=True)

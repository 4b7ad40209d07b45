"""The README.md of an exported retriever: how others give it their texts."""

from collections.abc import Mapping

from realm_jax.files.json_file import JsonValue
from realm_jax.models.retriever import Retriever

_HEADER = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags:
- sentence-transformers
- feature-extraction
- realm
---
"""
_OTHER_TOWER = {"query": "block", "block": "query"}
_EMBEDS = {"query": "queries", "block": "documents"}


def model_card(
  retriever: Retriever, prompts: Mapping[str, JsonValue], *, tower: str | None
) -> str:
  """Returns the text of README.md.

  Args:
    retriever: Retriever that is exported.
    prompts: Texts before each `query` and each `document`, maybe empty.
    tower: Tower of the directory, `query` or `block`; None if it is both.
  """
  sections = [
    _HEADER + "# Retriever of a retrieval-augmented language model",
    _introduction(retriever, tower),
    "## Usage",
    "```python\n" + _example(retriever, prompts, tower) + "```",
    "## Texts",
    _texts(retriever, prompts),
  ]
  return "\n\n".join(sections) + "\n"


def _introduction(retriever: Retriever, tower: str | None) -> str:
  length = " of length 1" if retriever.normalize else ""
  scale = retriever.score_scale
  factor, without = "", ""
  if scale != 1.0:
    factor, without = f"{scale:g} · ", f" without the factor {scale:g}"
  text = (
    f"Queries and documents become vectors of {retriever.vector_size} "
    f"dimensions{length}. The relevance of document z to query x is "
    f"{factor}⟨v(x), v(z)⟩, the inner product, which `model.similarity` "
    f"computes{without}. The directory was written by realm_jax."
  )
  if tower is None:
    return text
  other = _OTHER_TOWER[tower]
  return (
    f"{text}\n\nThis is the {tower} tower, which embeds {_EMBEDS[tower]}. "
    f"The {other} tower, which embeds {_EMBEDS[other]}, has a directory of its "
    f"own, which `--tower={other}` writes."
  )


def _example(
  retriever: Retriever, prompts: Mapping[str, JsonValue], tower: str | None
) -> str:
  query = f"{prompts['query']}who built the bridge?"
  title, body = "Bridge", "The bridge was built by the railway."
  title = f"{prompts['document']}{title}"
  document = f'("{title}", "{body}")'
  if not retriever.title_separator:
    document = f'"{title} {body}"'
  encoders = {"query": "model", "block": "model"}
  lines = ["from sentence_transformers import SentenceTransformer", ""]
  if tower is None:
    lines.append('model = SentenceTransformer("DIRECTORY")')
  else:
    encoders = {name: f"{name}_tower" for name in encoders}
    lines += [
      f'{name} = SentenceTransformer("{name.upper()}_DIRECTORY")'
      for name in encoders.values()
    ]
  lines += [
    f'queries = ["{query}"]',
    f"documents = [{document}]",
    f"x = {encoders['query']}.encode(queries)",
    f"z = {encoders['block']}.encode(documents)",
    f"print({encoders['query']}.similarity(x, z))",
  ]
  return "\n".join(lines) + "\n"


def _texts(retriever: Retriever, prompts: Mapping[str, JsonValue]) -> str:
  before = {
    name: f"{prompt}" if prompt else "" for name, prompt in prompts.items()
  }
  lines = [f"- A query is read as `[CLS] {before['query']}query [SEP]`."]
  document = f"- A document is read as `[CLS] {before['document']}title"
  if retriever.title_separator:
    types = "all tokens are of type 0"
    if retriever.token_types:
      types = "up to the first `[SEP]` the token type is 0, and after it 1"
    lines.append(
      f"{document} [SEP] body [SEP]`; {types}. Give it as the pair `(title, "
      'body)`, and a document without a title as `("", body)`: the tokenizer '
      "makes these tokens of a pair."
    )
  else:
    lines.append(
      f"{document} body [SEP]`: give title and body as one text, with a space "
      "between them."
    )
  if any(before.values()):
    lines.append(
      "- The words before queries and titles are the prompts `query` and "
      "`document`. The example writes them out. `encode_query` and "
      "`encode_document`, which later versions of the library have, add them."
    )
  lines.append(
    f"- A text is cut after {retriever.bert.max_positions} tokens. Models of "
    "this kind are trained on passages of at most 288 wordpieces; split longer "
    "documents, and give the title with each passage."
  )
  return "\n".join(lines)

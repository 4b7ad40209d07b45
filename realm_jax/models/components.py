"""Components, the named modules of a run, and their interfaces."""

import functools
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
from flax.core import meta
from jaxtyping import Array, Float, Int, PyTree

from realm_jax.errors import RealmError
from realm_jax.models import AnyArray
from realm_jax.models.parameters import Params
from realm_jax.models.sequences import Sequences

AnyComponent = TypeVar("AnyComponent", bound="Component")


@runtime_checkable
class Component(Protocol):
  """The interface of every component of a run; components are Flax modules.

  Attributes:
    num_heads: Number of attention heads; model parallelism divides them.
  """

  @property
  def num_heads(self) -> int: ...

  def for_vocabulary(
    self: AnyComponent, *, vocab_size: int, separator_id: int
  ) -> AnyComponent:
    """Returns the same module for the vocabulary of a corpus.

    Raises:
      RealmError: The module is configured for another vocabulary.
    """
    ...

  def init_parameters(
    self, key: jax.Array, *, query_length: int, block_length: int
  ) -> Params:
    """Initializes the parameters, in Flax's boxes, for padded lengths."""
    ...

  def apply(self, variables: Any, /, *arguments: Any, **settings: Any) -> Any:
    """Applies a method, as Flax modules do."""
    ...


@runtime_checkable
class Retriever(Component, Protocol):
  """A component that embeds queries and blocks.

  Its `__call__` embeds both, from inputs that are laid out. The relevance
  f(x, z) is `score_scale` times the inner product of their vectors (section
  3.2).

  Attributes:
    score_scale: Factor of every inner product.
    vector_size: Dimension of the vectors.
  """

  @property
  def score_scale(self) -> float: ...

  @property
  def vector_size(self) -> int: ...

  def query_tower_parameters(self, params: Params) -> Params:
    """Returns the part of the parameters that embeds queries."""
    ...

  def query_input(
    self, token_ids: Int[AnyArray, "n q"]
  ) -> Int[AnyArray, "n p"]:
    """Returns the query tower's input for padded queries `[CLS] x [SEP]`."""
    ...

  def block_input(
    self, token_ids: Int[AnyArray, "n l"]
  ) -> Int[AnyArray, "n p"]:
    """Returns the block tower's input for `[CLS] title [SEP] body [SEP]`."""
    ...

  def embed_queries(
    self, queries: Int[AnyArray, "*b l"] | Sequences
  ) -> Float[Array, "*n d"]:
    """Embeds padded queries, or the laid out sequences of `query_input`."""
    ...

  def embed_blocks(
    self, blocks: Int[AnyArray, "*b l"] | Sequences
  ) -> Float[Array, "*n d"]:
    """Embeds padded blocks, or the laid out sequences of `block_input`."""
    ...


@runtime_checkable
class HopRetriever(Retriever, Protocol):
  """A retriever that also embeds a query together with a retrieved block."""

  def hop_queries(
    self, query: Int[AnyArray, "b q"], blocks: Int[AnyArray, "b k l"]
  ) -> Int[AnyArray, "b k p"]:
    """Returns the padded queries of a second search."""
    ...

  def embed_hop_queries(
    self, queries: Int[AnyArray, "*b l"] | Sequences
  ) -> Float[Array, "*n d"]:
    """Embeds these queries, padded, or laid out sequences of `query_input`."""
    ...


def embed_queries(
  retriever: Retriever, params: Params, token_ids: Int[AnyArray, "b q"]
) -> Float[Array, "b d"]:
  """Returns the vectors of queries.

  The parameters of `query_tower_parameters` are enough.

  Example:
    >>> retriever, params = run.components.retriever, run.params["retriever"]
    >>> tokens = run.encode(["where was Ada born?", "what did Oda build?"])
    >>> run.compute(embed_queries, retriever, params, token_ids=tokens).shape
    (2, 8)
  """
  return retriever.apply({"params": params}, token_ids, method="embed_queries")


def embed_hop_queries(
  retriever: HopRetriever, params: Params, token_ids: Int[AnyArray, "b q"]
) -> Float[Array, "b d"]:
  """Returns the vectors of queries that `hop_queries` made."""
  method = "embed_hop_queries"
  return retriever.apply({"params": params}, token_ids, method=method)


def embed_blocks(
  retriever: Retriever, params: Params, token_ids: Int[AnyArray, "*b l"]
) -> Float[Array, "*b d"]:
  """Returns the vectors of blocks.

  Example:
    >>> retriever, params = run.components.retriever, run.params["retriever"]
    >>> blocks = run.gather(np.array([0, 1]))
    >>> run.compute(embed_blocks, retriever, params, token_ids=blocks).shape
    (2, 8)
  """
  return retriever.apply({"params": params}, token_ids, method="embed_blocks")


@runtime_checkable
class Reader(Component, Protocol):
  """A component that reads a query with its candidates.

  Attributes:
    dropout_rate: Dropout rate in training.

  Example:
    >>> from realm_jax.models.bert import BertConfig
    >>> from realm_jax.models.reader import BertReader
    >>> reader = BertReader(BertConfig(dropout_rate=0.2))
    >>> isinstance(reader, Reader), reader.dropout_rate
    (True, 0.2)
  """

  @property
  def dropout_rate(self) -> float: ...


@runtime_checkable
class TokenReader(Reader, Protocol):
  """A reader that scores tokens, given a query with each of its candidates.

  Example:
    >>> reader = run.components.token_reader
    >>> inputs = reader.join(np.ones((2, 16), int), np.ones((2, 5, 40), int))
    >>> inputs.tokens.token_ids.shape  # Each query beside its 5 candidates.
    (10, 56)
  """

  def join(
    self,
    query: Int[AnyArray, "b q"],
    candidates: Int[AnyArray, "b k l"],
    token_ids: Int[AnyArray, "b m"] | None = None,
  ) -> PyTree:
    """Returns the reader's inputs: a tree of `TokenSequences` and arrays.

    Sequences and rows of arrays are ordered by query, so that a batch can be
    split. The step lays out the sequences in bins.

    Args:
      query, candidates: Queries, and the blocks of each.
      token_ids: Target tokens, if there are any. A reader that writes feeds
        them to its decoder, to predict each token from the ones before.
    """
    ...

  def token_logits(
    self,
    inputs: PyTree,
    positions: Int[AnyArray, "b m"],
    token_ids: Int[AnyArray, "b m"],
  ) -> Float[Array, "b k m v"]:
    """Returns scores of the vocabulary for each target token, by candidate.

    Args:
      inputs: Inputs that `join` returned, laid out.
      positions: Positions of the masked targets in the query.
      token_ids: Target tokens, the same as in `join`.
    """
    ...


@runtime_checkable
class SpanReader(TokenReader, Protocol):
  """A reader that points at answers in the blocks.

  Attributes:
    max_answer_width: Number of tokens of the longest span.
    separator_id: Id of the token between the title of a block and its body.
  """

  @property
  def max_answer_width(self) -> int: ...

  @property
  def separator_id(self) -> int: ...


@runtime_checkable
class TextReader(Reader, Protocol):
  """A reader that writes a text: see `GenerativeReader` for its attributes."""

  @property
  def view(self) -> str | None: ...

  @property
  def fusion(self) -> str: ...

  @property
  def prompt(self) -> str: ...

  @property
  def passage(self) -> str: ...

  @property
  def target(self) -> str: ...

  @property
  def input_length(self) -> int: ...

  @property
  def target_length(self) -> int: ...

  @property
  def end_id(self) -> int: ...

  @property
  def vocab_size(self) -> int | None: ...

  def cross_attention(self, params: Params, inputs: PyTree) -> Any:
    """Returns the reader's attention to each candidate, as a target."""
    ...


# Cached, so that another evaluation in the process does not trace again.
@functools.lru_cache(maxsize=64)
def _abstract_parameters(
  module: Component, query_length: int, block_length: int
) -> PyTree[jax.ShapeDtypeStruct]:
  init = functools.partial(
    module.init_parameters, query_length=query_length, block_length=block_length
  )
  return meta.unbox(jax.eval_shape(init, jax.random.key(0)))


class Components(Mapping[str, Any]):
  """The modules of a run by name, such as `retriever` and `reader`.

  They compare by value and can be hashed, so that `jax.jit` caches compiled
  programs by them. A component that is None is left out.
  """

  def __init__(self, components: Mapping[str, Component | None]):
    self._modules = {
      name: module for name, module in components.items() if module is not None
    }

  def __getitem__(self, name: str) -> Any:
    if name not in self._modules:
      raise RealmError(
        f"this run has no {name}, only {', '.join(sorted(self._modules))}; "
        "give the config.json of a run or an import that has one as "
        f"--gin_file, or bind {name.upper()}, or COMPONENTS for another than "
        "a retriever or a reader"
      )
    return self._modules[name]

  def __contains__(self, name: object) -> bool:
    return name in self._modules

  def __iter__(self) -> Iterator[str]:
    return iter(self._modules)

  def __len__(self) -> int:
    return len(self._modules)

  def __hash__(self) -> int:
    return hash(frozenset(self._modules.items()))

  @property
  def retriever(self) -> Retriever:
    """The component `retriever`."""
    return self["retriever"]

  @property
  def hop_retriever(self) -> HopRetriever:
    """The component `retriever`, for two hops.

    Raises:
      RealmError: The retriever is not a `HopRetriever`.
    """
    retriever = self["retriever"]
    if not hasattr(retriever, "hop_queries"):
      raise RealmError(
        "two hops need a retriever that reads a query together with a block, "
        f"which a {type(retriever).__name__} does not; it lacks `hop_queries`"
      )
    return retriever

  @property
  def reader(self) -> Reader:
    """The component `reader`.

    Raises:
      RealmError: The run has no reader.
    """
    return self["reader"]

  @property
  def token_reader(self) -> TokenReader:
    """The component `reader`, checked to be one that scores tokens.

    Raises:
      RealmError: The run has no reader, or one of another kind.
    """
    return self._reader("token_logits", "scores tokens of the query")

  @property
  def span_reader(self) -> SpanReader:
    """The component `reader`, checked to be one that points at spans."""
    return self._reader("max_answer_width", "points at spans")

  @property
  def text_reader(self) -> TextReader:
    """The component `reader`, checked to be one that writes texts."""
    return self._reader("target_length", "writes texts")

  def _reader(self, attribute: str, does: str) -> Any:
    reader = self["reader"]
    if not hasattr(reader, attribute):
      raise RealmError(
        f"this stage trains a reader that {does}, which a "
        f"{type(reader).__name__} does not; choose another READER or STAGE"
      )
    return reader

  @property
  def reader_view(self) -> str | None:
    """View of the corpus that the reader reads, if it reads one."""
    return getattr(self._modules.get("reader"), "view", None)

  def only(self, names: Collection[str]) -> "Components":
    """Returns the components with these names; missing ones are left out.

    Example:
      >>> [*run.components], [*run.components.only(["retriever"])]
      (['retriever', 'reader'], ['retriever'])
    """
    return Components({n: module for n, module in self.items() if n in names})

  def abstract_parameters(
    self, *, query_length: int, block_length: int
  ) -> dict[str, PyTree[jax.ShapeDtypeStruct]]:
    """Returns the shapes and types of the parameters by component."""
    return {
      name: _abstract_parameters(module, query_length, block_length)
      for name, module in self.items()
    }

  def for_vocabulary(
    self,
    *,
    vocab_size: int,
    separator_id: int,
    views: Mapping[str, int] = MappingProxyType({}),
  ) -> "Components":
    """Returns the same components for the vocabularies of a corpus.

    Components with a `view` also get the vocabulary sizes of the views.

    Raises:
      RealmError: A component is configured for another vocabulary.
    """
    settings: dict[str, Any] = {
      "vocab_size": vocab_size,
      "separator_id": separator_id,
    }
    return Components(
      {
        name: module.for_vocabulary(**settings, views=views)
        if hasattr(module, "view")
        else module.for_vocabulary(**settings)
        for name, module in self.items()
      }
    )

"""Salient spans."""

from typing import NamedTuple, Protocol


class Span(NamedTuple):
  start: int
  limit: int
  kind: str


class Tagger(Protocol):
  def __call__(self, text: str, title: str) -> list[Span]: ...

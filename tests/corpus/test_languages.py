"""Builds of corpora in languages without capitals."""

import collections
import importlib.util

import pytest

from realm_jax.corpus.build import build_corpus
from realm_jax.corpus.summary import BuildSummary
from tests.corpus.conftest import write_lines


@pytest.mark.parametrize(
  ("language", "package"), [("zh", "jieba"), ("th", "pythainlp")]
)
@pytest.mark.parametrize("is_missing", [True, False])
def test_a_segmenter_that_is_missing_is_named(
  monkeypatch, language, package, is_missing
):
  monkeypatch.setattr(
    importlib.util, "find_spec", lambda name: None if is_missing else name
  )
  counts = {"documents": 1, "blocks": 1, "tokens": 9, "uncut_sentences": 3}
  summary = BuildSummary(
    **counts,
    spans_to_mask=3,
    languages=collections.Counter([language]),
    tagger="recurring",
  )
  said = [told for told in summary.warnings() if "inside words" in told]
  assert len(said) == is_missing
  assert all(package in told for told in said)
  # Nobody needs it for another tagger.
  summary.tagger = "rules"
  assert "inside words" not in "".join(summary.warnings())


@pytest.mark.slow
def test_beam_tags_phrases_that_recur_in_other_pieces(tmp_path):
  pytest.importorskip("apache_beam", reason="Beam is an extra")
  texts = [
    "诗人沈青禾生于江边的小城。",
    "许多读者喜欢沈青禾写的故事。",
    "后来沈青禾搬到山里居住。",
  ]
  lines = write_lines(
    tmp_path / "zh.jsonl", [{"title": "", "text": text} for text in texts]
  )
  summary = build_corpus(
    [str(lines)],
    tmp_path / "corpus",
    vocab="train:300",
    language="zh",
    tagger="recurring",
    shard_bytes=1,
    beam_options=["--runner=DirectRunner"],
  )
  assert summary.salient_spans["phrase"] >= len(texts)

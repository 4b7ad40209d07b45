"""What the recipe of docs/real_text_minilm.md trains on, and is tested on."""

from benchmarks.data import real_texts
from realm_jax.text.questions import normalize_question


def test_no_training_question_is_held_out(shared_data):
  held_out = real_texts.held_out_questions(shared_data)
  training = real_texts.training_questions(shared_data)
  assert (len(held_out), len(training)) == (203, 3362)
  found = {normalize_question(row["question"]) for row in training}
  assert not found & {normalize_question(row["question"]) for row in held_out}

"""seqio tasks, one file for each data set: `realm_jax.tasks`.

`python -m realm_jax.show_task` prints their examples. Your own task is a file
in this folder, or any module that the binding `TASK_MODULES` names. It is plain
seqio, and resumes exactly on any number of processes if

* its source gives records in a repeatable order: a
  `realm_jax.inputs.sources.RandomAccessSource`, or files of at most a million
  records, which are kept in memory (`seqio.TextLineDataSource`, whose lines
  are the feature "text", `seqio.TFExampleDataSource`, TFDS), but not a Python
  generator;
* its preprocessors return the "position" of every record, and make at most one
  example of a record, in the same order;
* its random numbers come from `tf.random.stateless_…` and the "seed", int32[2],
  of every record; seqio's own `seed` arguments depend on where a run started.

Questions in another format need only a function that reads them
(docs/training.md):

    def read(fields):
      return Question(fields["qText"], fields["answers"], fields["qId"])

    open_qa.add("quiz", JsonLinesSource(read))

Sentences masked in another way need only a rule:

    masked_sentences.add("half", functools.partial(random_tokens, rate=0.5))
"""

from realm_jax.errors import RealmError

if __name__ != "realm_jax.tasks":
  # Imported under two names, each task would be registered twice.
  raise RealmError("the package of tasks is realm_jax.tasks; name that")

"""seqio tasks, a data set a file; `realm_jax.show_task` prints their examples.

A task of yours is a file here, or a module anywhere that the binding
`TASK_MODULES` names. It is plain seqio, and three things make it one that
resumes exactly and reads alike on any number of processes:

* its source gives records in an order that can be repeated: a
  `realm_jax.inputs.sources.RandomAccessSource`, or files
  (`seqio.TextLineDataSource`, `seqio.TFExampleDataSource`, TFDS); a Python
  generator does not;
* preprocessors hand on "position", which every record brings, and make at
  most one example of a record, in the same order;
* what is random is drawn by `tf.random.stateless_…` from "seed", int32[2],
  which every record brings too; seqio's own `seed` arguments depend on where
  a run started.

Questions in another format need only be read, as those of WebQuestions:

    def read(fields):
      return Question(fields["qText"], fields["answers"], fields["qId"])

    open_qa.add("web_questions", source=JsonLinesSource(read))

and sentences masked in another way only a rule:

    masked_sentences.add("half", functools.partial(random_tokens, rate=0.5))
"""

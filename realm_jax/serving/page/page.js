"use strict";
// Asks the server, and shows what it says. All data become text nodes, never
// HTML. The edits live in this page alone, and go with each request.

const $ = (id) => document.getElementById(id);

const state = {
  about: null,
  // By block id: the title, the text as it was, and the edited one.
  edits: new Map(),
  // By text: the answer without edits, to compare with.
  unedited: new Map(),
  asked: "",
  // Ids of the blocks that the answer shown was read from.
  read: new Set(),
  request: null,
};

function el(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children.filter((child) => child !== null));
  return node;
}

function show(node, isShown) {
  node.hidden = !isShown;
}

function figure(p) {
  if (p === null || p === undefined) return "–";
  if (p === 0) return "0";
  return p < 0.001 ? "< 0.001" : p.toFixed(3);
}

// --- Bars ---------------------------------------------------------------

function bars(rows) {
  const table = el("div", { className: "bars" });
  for (const [name, value, kind] of rows) {
    const filled = el("span");
    filled.style.width = `${100 * Math.min(1, Math.max(0, value ?? 0))}%`;
    const bar = el("div", { className: `bar ${kind}` }, filled);
    bar.setAttribute("aria-hidden", "true");
    table.append(
      el("span", { className: "name small" }, name),
      bar,
      el("span", { className: "value small" }, figure(value)),
    );
  }
  return table;
}

// --- Asking -------------------------------------------------------------

async function json(response) {
  let fields;
  try {
    fields = await response.json();
  } catch {
    throw new Error(`the server answered with ${response.status}, not JSON`);
  }
  if (!response.ok) throw new Error(fields.error ?? `status ${response.status}`);
  return fields;
}

function editsOf() {
  return [...state.edits].map(([id, edit]) => ({ id, text: edit.text }));
}

function busy(isBusy) {
  $("submit").disabled = isBusy;
  show($("progress"), isBusy);
  $("result").classList.toggle("stale", isBusy);
}

function complain(text) {
  $("error").textContent = text;
  show($("error"), text !== "");
}

// Asks, and returns whether an answer is shown.
async function ask(text) {
  state.request?.abort();
  const request = (state.request = new AbortController());
  const began = performance.now();
  const elapsed = () => ((performance.now() - began) / 1000).toFixed(1);
  complain("");
  busy(true);
  $("status").textContent = "Searching and reading…";
  const clock = setInterval(() => {
    $("status").textContent =
      `Searching and reading… ${elapsed()} s` +
      (performance.now() - began > 5000
        ? " (the first questions compile programs, and others may be waiting)"
        : "");
  }, 500);
  try {
    const response = await fetch("api/ask", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ text, edits: editsOf() }),
      signal: request.signal,
    });
    const answered = await json(response);
    state.asked = text;
    if (state.edits.size === 0) state.unedited.set(text, answered);
    showAnswer(answered);
    $("status").textContent = `Answered in ${elapsed()} s.`;
    return true;
  } catch (error) {
    if (request.signal.aborted) return false;
    $("status").textContent = "";
    complain(
      error instanceof TypeError
        ? "The server does not answer. Is it still running?"
        : sentence(error.message),
    );
    return false;
  } finally {
    clearInterval(clock);
    if (state.request === request) busy(false);
  }
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + ".";
}

// --- The answer ---------------------------------------------------------

function showAnswer(answered) {
  const isQuestion = answered.kind === "question";
  $("answer-title").textContent = isQuestion ? "Answer" : "Filling";
  $("answer").textContent = answered.answer || "no answer";
  $("answer-probability").textContent =
    `probability ${figure(answered.probability)}`;
  const before = state.unedited.get(answered.text);
  const isEdited = state.edits.size > 0;
  show($("before"), isEdited && before !== undefined);
  if (isEdited && before !== undefined) {
    $("before").textContent =
      before.answer === answered.answer
        ? `The same as before the edits, then with probability ${figure(before.probability)}.`
        : `Before the edits: ${before.answer} (${figure(before.probability)})`;
  }
  showWithout(answered);
  $("notes").replaceChildren(
    ...answered.notes.map((note) => el("li", {}, sentence(note))),
  );
  show($("notes"), answered.notes.length > 0);
  $("best").replaceChildren(
    bars(answered.answers.map((one) => [one.text, one.probability, "share"])),
  );
  // The null block, which is no evidence, comes last.
  const isBlock = (block) => block.id !== null;
  const found = answered.blocks.filter(isBlock);
  const others = answered.blocks.filter((block) => !isBlock(block));
  $("blocks").replaceChildren(
    ...found.map((block, i) => blockCard(block, i + 1, answered.run.can_edit)),
    ...others.map(nullCard),
  );
  show($("result"), true);
  state.read = new Set(answered.blocks.map((block) => block.id));
  showEdits();
}

function showWithout(answered) {
  const without = answered.without;
  show($("without"), without !== null);
  if (without === null) return;
  $("without-answer").textContent = without.answer || "no answer";
  $("without-probability").textContent =
    `probability ${figure(without.probability)}`;
  if (without.kind === "null block") {
    $("without-title").textContent = "Without retrieval";
    $("without-text").textContent =
      (without.same
        ? "The reader alone says the same. "
        : `The reader alone gives “${answered.answer}” a probability of ` +
          `${figure(without.probability_of_answer)}. `) +
      `Utility of retrieval: ${signed(without.utility)} nats.`;
    return;
  }
  $("without-title").textContent = "Without the best block";
  $("without-text").textContent =
    `This reader points at words of a block, so that it has no answer without ` +
    `one. This is what it says when “${without.left_out}” is hidden from the ` +
    `search: ` +
    (without.same ? "the same, from another block." : "another answer.");
}

function signed(value) {
  return (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);
}

// --- Blocks -------------------------------------------------------------

function nullCard(block) {
  return el(
    "li",
    { className: "card block" },
    el(
      "div",
      { className: "block-head" },
      el("span", { className: "title" }, "No block"),
      el("span", { className: "quiet small" }, "the reader’s own knowledge"),
    ),
    blockBars(block),
    says(block),
  );
}

function blockCard(block, rank, canEdit) {
  const card = el("li", { className: "card block" });
  card.dataset.id = block.id;
  const actions = el("span", { className: "actions" });
  if (canEdit) {
    const button = el("button", { type: "button", className: "edit" }, "Edit");
    button.onclick = () => openEditor(card, block, button);
    actions.append(button);
  }
  if (block.is_edited) actions.append(restoreButton(block.id));
  card.append(
    el(
      "div",
      { className: "block-head" },
      el("span", { className: "quiet" }, `${rank}.`),
      el("span", { className: "title" }, block.title || block.name),
      el("span", { className: "quiet small" }, block.name),
      block.is_edited ? el("span", { className: "badge" }, "edited") : null,
      actions,
    ),
    blockBars(block),
    el(
      "p",
      { className: "block-text" },
      ...block.segments.map((segment) =>
        segment.mark === ""
          ? segment.text
          : el("mark", { className: `${segment.mark}-mark` }, segment.text),
      ),
    ),
    says(block),
  );
  if (block.contains_sentence) {
    card.append(
      el("p", { className: "quiet small" }, "It has your text word for word."),
    );
  }
  return card;
}

function blockBars(block) {
  return bars([
    ["retriever", block.retriever, "retriever"],
    ["block p(z|x)", block.probability, "block"],
    ["reader p(y|z,x)", block.reader, "reader"],
    ["share of the answer", block.share, "share"],
  ]);
}

function says(block) {
  if (block.says === null) return null;
  return el(
    "p",
    { className: "quiet small" },
    "Alone it would say ",
    el("strong", {}, block.says.text),
    ` (${figure(block.says.probability)}).`,
  );
}

// --- Edits --------------------------------------------------------------

function openEditor(card, block, button) {
  if (card.querySelector(".editor")) return;
  button.disabled = true;
  const id = `edit-${block.id}`;
  const area = el("textarea", {
    id,
    rows: 6,
    value: block.body,
    maxLength: state.about.limits.edit_characters,
  });
  const apply = el("button", { type: "submit", className: "primary" }, "Apply");
  const cancel = el("button", { type: "button" }, "Cancel");
  const editor = el(
    "form",
    { className: "editor" },
    el("label", { htmlFor: id, className: "small" }, "Text of this block"),
    area,
    el(
      "div",
      { className: "actions" },
      apply,
      cancel,
      el(
        "span",
        { className: "quiet small" },
        "in memory, for this page alone",
      ),
    ),
  );
  const text = card.querySelector(".block-text");
  const close = () => {
    editor.remove();
    show(text, true);
    button.disabled = false;
    button.focus();
  };
  cancel.onclick = close;
  area.onkeydown = (event) => {
    if (event.key === "Escape") close();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      editor.requestSubmit();
    }
  };
  editor.onsubmit = async (event) => {
    event.preventDefault();
    const earlier = state.edits.get(block.id);
    state.edits.set(block.id, {
      title: block.title || block.name,
      text: area.value,
    });
    // A text that the server refuses is no edit.
    if (!(await ask(state.asked))) {
      if (earlier === undefined) state.edits.delete(block.id);
      else state.edits.set(block.id, earlier);
    }
    showEdits();
    if (state.edits.has(block.id)) $("edits").scrollIntoView();
  };
  show(text, false);
  text.after(editor);
  area.focus();
}

function restoreButton(id) {
  const button = el("button", { type: "button", className: "restore" }, "Restore");
  button.onclick = () => restore([id]);
  return button;
}

function restore(ids) {
  for (const id of ids) state.edits.delete(id);
  showEdits();
  if (state.asked) ask(state.asked);
}

function showEdits() {
  $("edit-list").replaceChildren(
    ...[...state.edits].map(([id, edit]) =>
      el(
        "li",
        {},
        edit.title,
        state.read.has(id)
          ? null
          : el("span", { className: "quiet" }, " (not retrieved now)"),
        restoreButton(id),
      ),
    ),
  );
  show($("edits"), state.edits.size > 0);
}

// --- The form -----------------------------------------------------------

const KINDS = {
  question: "ask a question",
  "masked sentence": "write a sentence with [MASK]",
};

function start(about) {
  state.about = about;
  const kinds = Object.keys(KINDS).filter((kind) => kind in about.runs);
  $("hint").textContent = sentence(
    kinds.map((kind) => KINDS[kind]).join(", or "),
  ).replace(/\.$/, "");
  const lines = kinds.map((kind) => {
    const run = about.runs[kind];
    return (
      `${run.model_dir}, checkpoint ${run.checkpoint}, over ` +
      `${run.num_blocks.toLocaleString("en")} blocks (generation ` +
      `${run.generation}, ${run.index})`
    );
  });
  // One run may do both.
  $("runs").replaceChildren(
    ...[...new Set(lines)].map((line) => el("li", {}, line)),
  );
  $("missing").textContent = Object.values(about.missing).join(" ");
  show($("missing"), Object.keys(about.missing).length > 0);
  $("text").maxLength = about.limits.text_characters;
  const examples = kinds.flatMap((kind) => about.examples[kind] ?? []);
  $("examples").replaceChildren(
    ...examples.map((text) => {
      const button = el("button", { type: "button" }, text);
      button.onclick = () => {
        $("text").value = text;
        fit();
        ask(text);
      };
      return button;
    }),
  );
  show($("examples"), examples.length > 0);
}

function fit() {
  const area = $("text");
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}

$("text").oninput = fit;
$("text").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("form").requestSubmit();
  }
};
$("form").onsubmit = (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (text === "") complain("Write a question or a sentence first.");
  else ask(text);
};
$("restore-all").onclick = () => restore([...state.edits.keys()]);
document.addEventListener("keydown", (event) => {
  const isTyping = ["TEXTAREA", "INPUT"].includes(document.activeElement.tagName);
  if (event.key === "/" && !isTyping) {
    event.preventDefault();
    $("text").focus();
  }
});

fetch("api/about")
  .then(json)
  .then(start)
  .catch((error) => complain(sentence(error.message)));

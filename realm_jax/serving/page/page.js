"use strict";
// Sends requests to the server, and shows the replies. All data become text
// nodes, never HTML. Edits exist only in this page, and are sent with each
// request.

const UNSURE = 0.5;
const PROBABILITY =
  "The probability that the model gives this answer, over all passages that it read. " +
  "It is not the chance that the answer is true.";
// The service's token, if any, follows the # in the address of the page.
const token = decodeURIComponent(location.hash.slice(1));
const authorization = token ? { Authorization: `Bearer ${token}` } : {};
const $ = (id) => document.getElementById(id);
// Edits by block id, and the unedited answers by text, for comparison.
const state = { edits: new Map(), unedited: new Map(), asked: "" };

function el(tag, properties, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children.filter((child) => child !== null));
  return node;
}

function button(text, onclick, className = "") {
  return el("button", { type: "button", onclick, className }, text);
}

function put(id, ...children) {
  $(id).replaceChildren(...children.filter((child) => child !== null));
  $(id).hidden = $(id).childNodes.length === 0;
}

function percent(p) {
  return p > 0 && p < 0.01 ? "under 1 %" : `${Math.round(100 * p)} %`;
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + ".";
}

async function json(response) {
  const fields = await response.json().catch(() => ({}));
  if (response.ok) return fields;
  throw new Error(fields.error ?? `the server answered ${response.status}`);
}

// --- Asking ---------------------------------------------------------------

// Sends the text, and returns whether an answer is shown.
async function ask(text) {
  state.request?.abort();
  const request = (state.request = new AbortController());
  const edits = [...state.edits].map(([id, edit]) => ({ id, text: edit.text }));
  const url = new URL(location);
  url.searchParams.set("q", text);
  history.replaceState(null, "", url);
  put("error");
  put("status", "Searching and reading…");
  $("submit").disabled = true;
  const slow = setTimeout(
    () => put("status", "Still reading: the first questions take longer…"),
    5000,
  );
  const post = (path, fields) =>
    fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json", ...authorization },
      body: JSON.stringify(fields),
      signal: request.signal,
    }).then(json);
  try {
    if (!state.answers) {
      const { results } = await post("retrieve", { queries: [text], k: 10 });
      showFound(results[0]);
      return true;
    }
    const told = await post("api/ask", { text, edits });
    state.asked = text;
    if (edits.length === 0) state.unedited.set(text, told);
    showAnswer(told);
    return true;
  } catch (error) {
    if (request.signal.aborted) return false;
    const isGone = error instanceof TypeError;
    put("error", isGone ? "The server does not answer." : sentence(error.message));
    $("result").hidden = true;
    return false;
  } finally {
    clearTimeout(slow);
    if (state.request === request) {
      put("status");
      $("submit").disabled = false;
    }
  }
}

// Shows passages only, for a run without a reader.
function showFound({ blocks, error }) {
  if (error !== undefined) throw new Error(error);
  put("blocks", ...blocks.map((block, i) => found(block, i + 1)));
  $("result").hidden = false;
}

function found(block, rank) {
  return el(
    "li",
    { className: "card block" },
    el("span", { className: "quiet" }, heading(block, rank)),
    ...passagesOf(block).map((one) =>
      el(
        "div",
        { className: "passage" },
        el("b", { className: "title" }, nameOf(one)),
        el("p", { className: "block-text" }, one.text),
      ),
    ),
    el("p", { className: "quiet" }, `Score ${block.score.toFixed(2)}`),
  );
}

// --- The answer -------------------------------------------------------------

function showAnswer(told) {
  const isNull = (block) => block.id === "";
  const blocks = told.blocks.filter((block) => !isNull(block));
  put("answer-title", told.kind === "question" ? "Answer" : "Filling");
  put("answer", told.answer || "no answer");
  put("answer-probability", sureness(told));
  $("answer-probability").title = PROBABILITY;
  put("source", ...sourceOf(blocks));
  showBefore(told);
  put("without", withoutText(told));
  put("notes", ...told.notes.map((note) => el("li", {}, sentence(note))));
  const others = told.answers.filter((one) => one.text !== told.answer);
  put(
    "best",
    ...others.map((one) => {
      const words = one.text.toLowerCase();
      const from = blocks.find(({ text }) => text.toLowerCase().includes(words));
      const name = from ? linkTo(from, one.text) : one.text;
      return el("li", {}, name, ` ${percent(one.probability)}`);
    }),
  );
  // The null block comes last, because it is not evidence.
  put(
    "blocks",
    ...blocks.map((block, i) => card(block, i + 1, told.run.can_edit)),
    ...told.blocks.filter(isNull).map((block) =>
      el(
        "li",
        { className: "card block" },
        el("b", { className: "title" }, "No passage"),
        el("p", {}, "What the reader knows without reading."),
        why(block),
      ),
    ),
  );
  $("result").hidden = false;
  showEdits(new Set(blocks.flatMap(passagesOf).map(({ id }) => id)));
}

function linkTo(block, text) {
  const href = `#block-${encodeURIComponent(block.id)}`;
  return el("a", { href }, text);
}

function sureness({ probability: p }) {
  return `${p < UNSURE ? "Low confidence: p" : "P"}robability ${percent(p)}`;
}

// The sentence with the answer, in the passage that contributes most to it.
function sourceOf(blocks) {
  const isAnswer = (segment) => segment.mark === "answer";
  const withAnswer = (block) =>
    passagesOf(block).find((one) => one.segments.some(isAnswer));
  const [best] = blocks
    .filter(withAnswer)
    .sort((one, other) => (other.share ?? 0) - (one.share ?? 0));
  if (!best) return [];
  const read = withAnswer(best);
  const { segments } = read;
  const place = segments.findIndex(isAnswer);
  const textOf = (pieces) => pieces.map((one) => one.text).join("");
  const before = textOf(segments.slice(0, place));
  const after = textOf(segments.slice(place + 1));
  return [
    before.split(/(?<=[.!?])\s/).at(-1),
    el("mark", { className: "answer-mark" }, segments[place].text),
    after.split(/(?<=[.!?])\s/)[0],
    el("cite", {}, " — ", linkTo(best, nameOf(read))),
  ];
}

function showBefore(told) {
  const before = state.unedited.get(told.text);
  if (state.edits.size === 0 || before === undefined) return put("before");
  put("answer-title", "After the edits");
  put(
    "before",
    el("h2", {}, "Before the edits"),
    el("p", { className: "answer" }, before.answer || "no answer"),
    el("p", { className: "quiet" }, sureness(before)),
    el("blockquote", {}, ...sourceOf(before.blocks)),
  );
}

function withoutText(told) {
  const { without } = told;
  if (without === null) return "";
  const where =
    without.left_out === null
      ? "Without any passage"
      : `Without “${without.left_out}”`;
  const what = without.same ? "the same" : without.answer || "no answer";
  return `${where}: ${what} (${percent(without.probability)}).`;
}

// --- Passages ---------------------------------------------------------------

// A path consists of several passages, in the order in which they are read.
function passagesOf(block) {
  return block.path ?? [block];
}

function nameOf(block) {
  const names = passagesOf(block).map(({ title, id }) => title || id);
  return names.join(" → ");
}

function heading(block, rank) {
  const { length } = passagesOf(block);
  if (length === 1) return `${rank}. `;
  const p = percent(block.probability);
  return `${rank}. A path of ${length} passages, probability ${p}`;
}

function marked(segments) {
  return segments.map(({ mark, text }) =>
    mark ? el("mark", { className: `${mark}-mark` }, text) : text,
  );
}

function card(block, rank, canEdit) {
  return el(
    "li",
    { className: "card block", id: `block-${block.id}` },
    el("span", { className: "quiet" }, heading(block, rank)),
    ...passagesOf(block).map((one) => passage(one, canEdit)),
    block.contains_text
      ? el("p", { className: "quiet" }, "It has your text word for word.")
      : null,
    why(block),
  );
}

function passage(block, canEdit) {
  const text = el("p", { className: "block-text" }, ...marked(block.segments));
  const around = button("Read around it", () => {
    around.disabled = true;
    const [before, after] = block.around.map((piece) =>
      el("p", { className: "quiet around" }, piece ?? "The document ends here."),
    );
    text.before(before);
    text.after(after);
  });
  const edit = button("Edit", () => openEditor(block, text, edit), "edit");
  const restoring = button("Restore", () => restore([block.id]));
  const badge = el("span", { className: "badge" }, "edited");
  const title = block.title_segments;
  const made = el(
    "div",
    { className: "passage" },
    el("b", { className: "title" }, ...(title.length ? marked(title) : [nameOf(block)])),
    block.is_edited ? badge : null,
    text,
    el(
      "div",
      { className: "actions" },
      around,
      canEdit ? edit : null,
      block.is_edited ? restoring : null,
    ),
  );
  made.dataset.id = block.id;
  return made;
}

function why(block) {
  // Some readers do not have all of these.
  const rows = [
    ["how relevant the retriever finds it", block.probability],
    ["how much the run relies on it, p(z|x)", block.weight],
    ["how surely it gives the answer, p(y|z,x)", block.likelihood],
    ["its share of the answer", block.share],
  ]
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) =>
      el(
        "tr",
        {},
        el("td", {}, name),
        el("td", {}, el("meter", { value })),
        el("td", {}, percent(value)),
      ),
    );
  const said = block.best;
  return el(
    "details",
    {},
    el("summary", {}, "Why"),
    el("table", {}, ...rows),
    said && el("p", {}, `Alone: ${said.text} (${percent(said.probability)}).`),
  );
}

// --- Edits ------------------------------------------------------------------

function openEditor(block, text, opener) {
  const area = el("textarea", {
    rows: 6,
    value: block.text,
    ariaLabel: "Text of this passage",
  });
  const close = () => {
    editor.remove();
    text.hidden = opener.disabled = false;
    opener.focus();
  };
  const editor = el(
    "form",
    { className: "editor" },
    area,
    el("button", { className: "primary" }, "Apply"),
    button("Cancel", close),
  );
  editor.onsubmit = async (event) => {
    event.preventDefault();
    const earlier = state.edits.get(block.id);
    state.edits.set(block.id, { title: nameOf(block), text: area.value });
    if (await ask(state.asked)) return scrollTo(0, 0);
    // If the server rejects the text, it is not an edit yet, and can be fixed.
    if (earlier === undefined) state.edits.delete(block.id);
    else state.edits.set(block.id, earlier);
    $("result").hidden = false;
  };
  area.onkeydown = (event) => {
    if (event.key === "Escape") close();
  };
  text.hidden = opener.disabled = true;
  text.after(editor);
  area.focus();
}

function restore(ids) {
  for (const id of ids) state.edits.delete(id);
  ask(state.asked);
}

function showEdits(read) {
  put(
    "edit-list",
    ...[...state.edits].map(([id, { title }]) =>
      el(
        "li",
        {},
        `${title} ${read.has(id) ? "" : "(not retrieved now) "}`,
        button("Restore", () => restore([id]), "restore"),
      ),
    ),
  );
  $("edits").hidden = state.edits.size === 0;
  $("restore-all").hidden = state.edits.size < 2;
}

// --- The form ---------------------------------------------------------------

function write(text) {
  $("text").value = text;
  ask(text);
}

function start(about) {
  const kinds = Object.keys(about.runs);
  state.answers = kinds.length > 0;
  document.body.classList.toggle("search", !state.answers);
  const hints = { question: "ask a question" };
  hints["masked sentence"] = "write a sentence with [MASK]";
  const hint = kinds.map((kind) => hints[kind]).join(", or ");
  put("hint", sentence(hint || "search for passages"));
  if (!state.answers) put("submit", "Search");
  const runs = [about.retriever, ...Object.values(about.runs)];
  const count = Math.max(...runs.map((run) => run.num_blocks));
  put(
    "runs",
    `${state.answers ? "Answers come from" : "There are"} `,
    `${count.toLocaleString("en")} passages. `,
    ...(state.answers ? about.missing : ["This run finds passages, but gives no answers."]),
  );
  put(
    "examples",
    ...about.examples.map((text) => button(text, () => write(text))),
  );
  const linked = new URL(location).searchParams.get("q");
  if (linked) write(linked);
}

$("text").onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("form").requestSubmit();
};
$("form").onsubmit = (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (text) ask(text);
  else put("error", "Write a question or a sentence first.");
};
$("restore-all").onclick = () => restore([...state.edits.keys()]);

fetch("api/about", { headers: authorization })
  .then(json)
  .then(start, (error) => put("error", sentence(error.message)));

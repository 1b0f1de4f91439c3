// Documents and a question in, an answer and its picture out; before and after side by side.

import { ask, get, post } from "./api.js";
import { documents, fill, showFates } from "./documents.js";
import { byId, make, milliseconds } from "./dom.js";
import { bar, numbersOf, segmentList } from "./picture.js";
import { EXAMPLE } from "./example.js";

const LOOKS = 10; // for a request in the list of those that are over
const LOOK_MS = 100;

let stopping = null;

/** Set up the forms.  `onError` shows a failure, `onDone` is called when a request is over. */
export function startPlayground({ onError, onDone }) {
  byId("ask-form").addEventListener("submit", (event) => {
    event.preventDefault();
    withButtons(() => askAll(onDone), onError);
  });
  byId("stop").addEventListener("click", () => stopping?.abort());
  byId("warm").addEventListener("click", () => withButtons(warm, onError));
  byId("sample").addEventListener("click", fillExample);
}

function fillExample() {
  fill(EXAMPLE.documents);
  byId("system").value = EXAMPLE.system;
  byId("question").value = EXAMPLE.question;
}

/** One thing at a time; it can be stopped. */
async function withButtons(work, onError) {
  const buttons = [byId("ask"), byId("warm")];
  for (const button of buttons) button.disabled = true;
  byId("stop").disabled = false;
  stopping = new AbortController();
  onError(null);
  try {
    await work();
  } catch (error) {
    if (error.name === "AbortError") byId("ask-words").textContent = "stopped";
    else {
      byId("ask-words").textContent = "";
      onError(error);
    }
  } finally {
    stopping = null;
    for (const button of buttons) button.disabled = false;
    byId("stop").disabled = true;
  }
}

async function warm() {
  const segments = documents();
  if (segments.length === 0) {
    byId("warm-words").textContent = "there is no text to register";
    return;
  }
  byId("warm-words").textContent = "warming …";
  try {
    const told = await post("v1/segments", { segments, warm: "wait" }, stopping.signal);
    const failed = (told.errors ?? []).map((one) => one.message);
    byId("warm-words").textContent =
      `${told.data.length} registered and warm` + (failed.length ? `; ${failed.join("; ")}` : "");
  } catch (error) {
    byId("warm-words").textContent = "";
    throw error;
  }
}

function body(mode) {
  const system = byId("system").value;
  const messages = system ? [{ role: "system", content: system }] : [];
  return {
    messages: [...messages, { role: "user", content: byId("question").value }],
    documents: documents(),
    max_tokens: Number(byId("max-tokens").value),
    hypic: { mode },
  };
}

async function askAll(onDone) {
  // what stood under "now" is before; the elements move as they are
  const now = byId("run-now").querySelector(".told");
  const asked = { body: body("pic"), withOff: byId("with-off").checked };
  if (now.querySelector(".answer")) {
    byId("run-before").querySelector(".told").replaceChildren(...now.childNodes);
    byId("run-before").dataset.state = byId("run-now").dataset.state;
  }
  byId("compared").textContent = "";
  showFates([]);
  const done = await run("run-now", asked.body);
  onDone();
  if (done) showFates(done.segments.filter((one) => one.document !== null));
  if (!asked.withOff) return;
  const off = await run("run-off", { ...asked.body, hypic: { mode: "off" } });
  onDone();
  if (done && off) compare(done, off);
}

/** Ask once, and show it in one card; gives the request as it is remembered. */
async function run(id, asked) {
  const card = byId(id);
  const answer = make("p", { class: "answer", "aria-live": "polite" });
  const reasoning = make("p", { class: "answer reasoning" });
  card.dataset.state = "running";
  card.querySelector(".told").replaceChildren(orderOf(asked.documents), answer);
  byId("ask-words").textContent = "asking …";
  try {
    const told = await ask(asked, {
      signal: stopping.signal,
      onText: (text) => answer.append(text),
      onReasoning: (text) => {
        if (!reasoning.isConnected) answer.before(reasoning);
        reasoning.append(text);
      },
    });
    const request = await remembered(told.id);
    if (request) showCost(card, request, told.firstMs);
    card.dataset.state = "done";
    byId("ask-words").textContent = "";
    return request;
  } catch (error) {
    card.dataset.state = "failed";
    throw error;
  }
}

function orderOf(asked) {
  const names = asked.map((one, index) => one.title ?? `document ${index + 1}`);
  return make("p", { class: "quiet" }, names.length ? names.join(" → ") : "no documents");
}

function showCost(card, request, firstMs) {
  const numbers = numbersOf(request);
  numbers.append(
    make("div", {}, make("dt", {}, "seen here"), make("dd", {}, milliseconds(firstMs))),
  );
  card.querySelector(".told").append(bar(request), numbers, segmentList(request));
}

/** A request of `/v1/requests/recent`: it is there as soon as the server is done with it. */
async function remembered(id) {
  for (let look = 0; look < LOOKS; look += 1) {
    const { data } = await get("v1/requests/recent", stopping.signal);
    const found = data.find((one) => one.id === id);
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
  }
  return null;
}

function compare(now, off) {
  const [reused, computed] = [now.timing_ms.ttft, off.timing_ms.ttft];
  if (!reused || !computed) return;
  byId("compared").textContent =
    `First token after ${milliseconds(reused)}, with mode “off” after ${milliseconds(computed)}: ` +
    `${(computed / reused).toFixed(1)} times as long.`;
}

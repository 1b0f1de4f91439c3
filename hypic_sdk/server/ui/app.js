// The page: its key, its parts, and how often they are looked at again.

import { get, key } from "./api.js";
import { fit, redraw, showHistory } from "./charts.js";
import { addDocument } from "./documents.js";
import { byId } from "./dom.js";
import { startPlayground } from "./playground.js";
import { showRequests } from "./requests.js";

const REQUESTS_MS = 2000;
const HISTORY_MS = 5000;

function showError(error) {
  const notice = byId("notice");
  notice.hidden = error === null;
  if (error === null) return;
  const isKey = error.status === 401;
  notice.textContent = isKey ? "This server wants a key: put it in above." : error.message;
  if (isKey) byId("key").placeholder = "a key is needed";
}

/** Whether the last look failed; then it says so, and takes it back when one succeeds. */
let isLost = false;
/** Whether the server wants another key: then nothing is asked until there is one. */
let needsKey = false;

async function look(path, show) {
  try {
    show(await get(path));
    if (isLost) showError(null);
    isLost = false;
  } catch (error) {
    isLost = true;
    needsKey = error.status === 401;
    showError(error);
  }
}

const lookAtRequests = () => look("v1/requests/recent", ({ data }) => showRequests(data));
const lookAtHistory = () => look("v1/cache/history", showHistory);

async function lookAtAll() {
  await lookAtRequests();
  if (isLost) return;
  await lookAtHistory();
  await look("v1/models", ({ data }) => {
    byId("model").textContent = data.map((one) => one.id).join(", ");
  });
}

/** Look again and again, but not while nobody sees it. */
function every(interval, lookAgain) {
  setTimeout(async () => {
    if (!document.hidden && !needsKey) await lookAgain();
    every(interval, lookAgain);
  }, interval);
}

byId("key").value = key.get();
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(byId("key").value.trim());
  needsKey = false;
  // what is shown is of whoever had the other key
  showRequests([]);
  showHistory({ data: [] });
  lookAtAll();
});
byId("add").addEventListener("click", () => addDocument().querySelector("input").focus());
byId("pool").addEventListener("change", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
new ResizeObserver(fit).observe(byId("charts"));

addDocument();
addDocument();
startPlayground({ onError: showError, onDone: () => lookAtAll() });
lookAtAll();
every(REQUESTS_MS, lookAtRequests);
every(HISTORY_MS, lookAtHistory);

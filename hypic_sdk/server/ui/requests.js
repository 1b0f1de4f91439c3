// The latest requests, each with its picture.

import { byId, make } from "./dom.js";
import { bar, numbersOf, segmentList } from "./picture.js";

/** What is shown now, so that a list that did not change is left alone (and keeps what is open). */
let shown = "";

export function showRequests(requests) {
  const ids = requests.map((request) => request.id).join(" ");
  if (ids === shown) return;
  shown = ids;
  const open = new Set(
    [...document.querySelectorAll("#requests details[open]")].map((one) => one.dataset.id),
  );
  byId("no-requests").hidden = requests.length > 0;
  byId("requests").replaceChildren(
    ...requests.map((request) => requestItem(request, open.has(request.id))),
  );
}

function requestItem(request, isOpen) {
  const failed = request.error_code ? ` (${request.error_code})` : "";
  const item = make(
    "li",
    { class: "card request", "data-id": request.id },
    make(
      "div",
      { class: "line" },
      make("time", { datetime: new Date(1000 * request.created_at).toISOString() }, timeOf(request)),
      make("span", {}, request.endpoint),
      request.mode === "off" ? make("span", { class: "status live" }, "mode off") : null,
      request.status === "ok"
        ? null
        : make("span", { class: "status failed" }, `${request.status}${failed}`),
      make("code", { class: "quiet" }, request.id),
    ),
  );
  if (request.picture.length > 0) item.append(bar(request));
  item.append(numbersOf(request));
  if (request.segments.length > 0) {
    const summary = make("summary", {}, segmentsText(request));
    item.append(
      make("details", { open: isOpen, "data-id": request.id }, summary, segmentList(request)),
    );
  }
  return item;
}

function segmentsText(request) {
  const counts = new Map();
  for (const { status } of request.segments) counts.set(status, (counts.get(status) ?? 0) + 1);
  const told = [...counts].map(([status, number]) => `${number} ${status}`).join(", ");
  return `${request.num_segments} ${request.num_segments === 1 ? "segment" : "segments"}: ${told}`;
}

function timeOf(request) {
  return new Date(1000 * request.created_at).toLocaleTimeString("en-GB");
}

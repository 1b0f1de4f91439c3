// The boxes of the playground's documents, and their order.

import { byId, make } from "./dom.js";

let number = 0;
let dragged = null;

const list = () => byId("documents");
const boxes = () => [...list().children];

/** The documents that have a text, in their order. */
export function documents() {
  return boxes()
    .map((box) => ({
      title: box.querySelector("input").value.trim(),
      text: box.querySelector("textarea").value,
    }))
    .filter((one) => one.text.trim())
    .map(({ title, text }) => (title ? { title, text } : { text }));
}

/** Put these documents in the place of those that are there. */
export function fill(texts) {
  list().replaceChildren();
  for (const { title, text } of texts) addDocument(title, text);
}

export function addDocument(title = "", text = "") {
  const box = documentBox(title, text);
  list().append(box);
  rename();
  return box;
}

/** Say beside each box with a text what became of it; `fates` are in their order. */
export function showFates(fates) {
  const filled = boxes().filter((box) => box.querySelector("textarea").value.trim());
  for (const box of boxes()) box.querySelector(".fate").replaceChildren();
  filled.forEach((box, index) => {
    const fate = fates[index];
    if (!fate) return;
    const reason = fate.miss_reason ? ` · ${fate.miss_reason}` : "";
    box
      .querySelector(".fate")
      .replaceChildren(
        make("span", { class: `status ${fate.status}` }, fate.status),
        make("span", { class: "quiet" }, ` ${fate.tokens} tokens${reason}`),
      );
  });
}

function documentBox(title, text) {
  number += 1;
  const box = make("li", { class: "document" });
  const name = make("input", { id: `title-${number}`, placeholder: "title", maxlength: 256 });
  const area = make("textarea", { id: `text-${number}`, rows: 4, placeholder: "text" });
  name.value = title;
  area.value = text;
  const handle = make("span", { class: "handle", draggable: "true", title: "drag" }, "⠿");
  box.append(
    make(
      "div",
      { class: "line" },
      handle,
      name,
      make("button", { type: "button", class: "up", onclick: () => move(box, -1) }, "↑"),
      make("button", { type: "button", class: "down", onclick: () => move(box, 1) }, "↓"),
      make("button", { type: "button", class: "remove", onclick: () => remove(box) }, "✕"),
    ),
    area,
    make("div", { class: "fate", role: "status" }),
  );
  box.addEventListener("keydown", (event) => onKey(event, box));
  listenForDrags(box, handle);
  return box;
}

/** Labels say the place of each box, and the first and last can not go further. */
function rename() {
  const all = boxes();
  all.forEach((box, index) => {
    const place = `document ${index + 1}`;
    box.querySelector("input").setAttribute("aria-label", `Title of ${place}`);
    box.querySelector("textarea").setAttribute("aria-label", `Text of ${place}`);
    box.querySelector(".up").setAttribute("aria-label", `Move ${place} up`);
    box.querySelector(".down").setAttribute("aria-label", `Move ${place} down`);
    box.querySelector(".remove").setAttribute("aria-label", `Remove ${place}`);
    box.querySelector(".up").disabled = index === 0;
    box.querySelector(".down").disabled = index === all.length - 1;
  });
}

function remove(box) {
  const next = box.nextElementSibling ?? box.previousElementSibling;
  box.remove();
  rename();
  (next?.querySelector("input") ?? byId("add")).focus();
}

function move(box, step) {
  const place = boxes().indexOf(box) + step;
  if (place < 0 || place >= boxes().length) return;
  const focused = document.activeElement;
  putAt(box, place);
  if (box.contains(focused) && !focused.disabled) focused.focus();
  else box.querySelector("input").focus();
}

function putAt(box, place) {
  const others = boxes().filter((one) => one !== box);
  list().insertBefore(box, others[place] ?? null);
  rename();
  const title = box.querySelector("input").value || "The document";
  byId("moved").textContent = `${title} is now at place ${place + 1} of ${boxes().length}`;
}

function onKey(event, box) {
  if (!event.altKey || !["ArrowUp", "ArrowDown"].includes(event.key)) return;
  event.preventDefault();
  move(box, event.key === "ArrowUp" ? -1 : 1);
}

function listenForDrags(box, handle) {
  handle.addEventListener("dragstart", (event) => {
    dragged = box;
    box.classList.add("dragged");
    event.dataTransfer.effectAllowed = "move";
    event.dataTransfer.setData("text/plain", "");
    event.dataTransfer.setDragImage(box, 12, 12);
  });
  handle.addEventListener("dragend", () => {
    dragged = null;
    for (const one of boxes()) one.classList.remove("dragged", "over");
  });
  box.addEventListener("dragover", (event) => {
    if (dragged === null) return;
    event.preventDefault();
    for (const one of boxes()) one.classList.toggle("over", one === box && box !== dragged);
  });
  box.addEventListener("drop", (event) => {
    if (dragged === null) return;
    event.preventDefault();
    if (box !== dragged) putAt(dragged, boxes().indexOf(box));
  });
}

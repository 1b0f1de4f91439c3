// Elements from plain values.  Text only ever becomes text nodes and attributes, never markup.

/**
 * One element.  `attributes`: what is `false`, `null` or `undefined` is left out; `on…` are
 * listeners; `class`, `data-…`, `aria-…` and the rest are attributes.  `children`: elements or texts.
 */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function byId(id) {
  return document.getElementById(id);
}

const numbers = new Intl.NumberFormat("en-GB");

export function count(number) {
  return numbers.format(number);
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value > 0 && value < 10 ? `${value.toFixed(1)} ms` : `${count(Math.round(value))} ms`;
}

export function percent(part, whole) {
  return whole > 0 ? `${Math.round((100 * part) / whole)} %` : "–";
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let index = 0;
  while (value >= 1024 && index < units.length - 1) {
    value /= 1024;
    index += 1;
  }
  return `${value < 10 && index > 0 ? value.toFixed(1) : Math.round(value)} ${units[index]}`;
}

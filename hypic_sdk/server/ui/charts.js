// Pools and hit rate over time.  What a chart draws is told beside it in words and in a table.

import { byId, bytes, count, make, percent } from "./dom.js";
import uPlot from "./uplot.js";

const POOLS = { state_rows: "state rows", transition_rows: "transition rows", kv_slots: "KV slots" };
const STATES = ["pinned", "filling", "reserved", "idle", "free"]; // from the bottom to the top
// each area reaches down to zero, so the highest is drawn first
const DRAWN = [...STATES].reverse();
const HEIGHT = 220;
const BYTE_STEPS = Array.from({ length: 48 }, (_, power) => 2 ** power);

let latest = null;
let charts = [];

/** Draw a `/v1/cache/history`. */
export function showHistory(history) {
  latest = history;
  const samples = history.data;
  byId("no-samples").hidden = samples.length > 0;
  byId("charts").hidden = samples.length === 0;
  if (samples.length === 0) return;
  showTable(samples.at(-1));
  const pools = chosenPools();
  const hits = hitRates(samples);
  if (charts.length === 0) charts = [poolChart(), hitChart()];
  charts[0].setData(stacked(samples, pools));
  charts[1].setData(hits);
  tellInWords(samples, hits);
}

/** Draw again, as the colours or the width are others now. */
export function redraw() {
  for (const chart of charts) chart.destroy();
  charts = [];
  if (latest) showHistory(latest);
}

export function fit() {
  for (const chart of charts) {
    const width = chart.root.parentElement.clientWidth;
    if (width > 0 && width !== chart.width) chart.setSize({ width, height: HEIGHT });
  }
}

function chosenPools() {
  const chosen = byId("pool").value;
  return chosen === "all" ? Object.keys(POOLS) : [chosen];
}

function inState(sample, pools, state) {
  return pools.reduce((sum, pool) => sum + sample[pool][state], 0);
}

/** Times, then for each drawn state the bytes of it and of all states below it. */
function stacked(samples, pools) {
  const sums = samples.map(() => 0);
  const rows = STATES.map((state) =>
    samples.map((sample, index) => (sums[index] += inState(sample, pools, state))),
  );
  return [samples.map((sample) => sample.at), ...rows.reverse()];
}

/** Times, and between each two of them the reused share of prompt tokens; null: no request then. */
function hitRates(samples) {
  const rates = samples.map((sample, index) => {
    if (index === 0) return null;
    const before = samples[index - 1];
    const tokens = sample.prompt_tokens - before.prompt_tokens;
    return tokens > 0 ? (100 * (sample.cached_tokens - before.cached_tokens)) / tokens : null;
  });
  return [samples.map((sample) => sample.at), rates];
}

function tellInWords(samples, [, rates]) {
  const last = samples.at(-1);
  const told = rates.filter((rate) => rate !== null);
  const whole = percent(last.cached_tokens, last.prompt_tokens);
  byId("hit-words").textContent =
    `${count(last.num_requests)} requests of yours since the start; ` +
    `${count(last.cached_tokens)} of ${count(last.prompt_tokens)} prompt tokens reused (${whole}).` +
    (told.length > 0 ? ` Lately ${Math.round(told.at(-1))} %.` : "");
  byId("pool-words").textContent =
    `${count(last.num_segments)} segments and ${count(last.num_chains)} chains are kept, ` +
    `${count(last.num_evicted)} were evicted.`;
}

function showTable(sample) {
  byId("pool-table").replaceChildren(
    ...Object.entries(POOLS).map(([pool, name]) =>
      make(
        "tr",
        {},
        make("th", { scope: "row" }, name),
        ...STATES.map((state) => make("td", {}, bytes(sample[pool][state]))),
      ),
    ),
  );
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function axes(values, steps) {
  const look = { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 } };
  return [
    { ...look, ticks: { show: false }, values: (plot, splits) => splits.map(clock) },
    {
      ...look,
      ticks: { show: false },
      size: 72,
      incrs: steps,
      values: (plot, splits) => splits.map(values),
    },
  ];
}

function clock(seconds) {
  return new Date(1000 * seconds).toLocaleTimeString("en-GB");
}

function chart(id, series, axis, range, steps) {
  const place = byId(id);
  place.replaceChildren();
  const options = {
    width: place.clientWidth || 600,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    scales: { x: { time: true }, y: { range } },
    axes: axes(axis, steps),
    series: [{}, ...series],
  };
  const made = new uPlot(options, [[], ...series.map(() => [])], place);
  made.root.setAttribute("aria-hidden", "true"); // words and a table beside it say the same
  return made;
}

function poolChart() {
  const series = DRAWN.map((state) => ({
    stroke: colour(`state-${state}`),
    fill: colour(`state-${state}`),
    width: 1,
    points: { show: false },
  }));
  return chart("pool-chart", series, bytes, (plot, low, high) => [0, high || 1], BYTE_STEPS);
}

function hitChart() {
  const one = {
    stroke: colour("reused"),
    width: 2,
    spanGaps: true,
    points: { show: true, size: 6, fill: colour("reused") },
  };
  return chart("hit-chart", [one], (value) => `${value} %`, () => [0, 100], [20, 50]);
}

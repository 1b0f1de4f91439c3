// The picture of a prompt: its tokens from left to right, by what became of them.

import { count, make, milliseconds, percent } from "./dom.js";

const KINDS = {
  reused: "reused",
  seam: "recomputed at seams",
  computed: "computed",
  untold: "not remembered one by one",
};

/** How a segment is called: by its title, else by the beginning of its id. */
export function nameOf(segment) {
  return segment.title ?? `${segment.segment_id.slice(0, 12)}…`;
}

function described(segment) {
  const reason = segment.miss_reason ? ` (${segment.miss_reason})` : "";
  const lines = [
    `${nameOf(segment)}: ${segment.status}${reason}`,
    `${count(segment.tokens)} tokens, ${count(segment.reused_tokens)} reused, ` +
      `${count(segment.seam_tokens)} at seams`,
  ];
  if (segment.cold_ms > 0) lines.push(`${milliseconds(segment.cold_ms)} cold`);
  lines.push(segment.segment_id);
  return lines.join("\n");
}

function stretchText(stretch, segments) {
  const what = `${count(stretch.tokens)} tokens ${KINDS[stretch.kind]}`;
  const from = `from token ${count(stretch.start)}`;
  if (stretch.segment === null) return `${what}, ${from}, outside of segments`;
  return `${what}, ${from}\n${described(segments[stretch.segment])}`;
}

/** The bar alone; `request` is one of `/v1/requests/recent`. */
export function bar(request) {
  const tokens = { reused: 0, seam: 0, computed: 0, untold: 0 };
  const element = make("div", { class: "bar", role: "img" });
  let owner = null;
  for (const stretch of request.picture) {
    tokens[stretch.kind] += stretch.tokens;
    const isFirst = stretch.segment !== null && stretch.segment !== owner;
    owner = stretch.segment;
    const part = make("span", {
      class: `stretch ${stretch.kind}${isFirst ? " first" : ""}`,
      title: stretchText(stretch, request.segments),
      "data-kind": stretch.kind,
      "data-tokens": stretch.tokens,
      "data-segment": stretch.segment,
    });
    part.style.flexGrow = String(stretch.tokens);
    element.append(part);
  }
  const parts = Object.entries(tokens).filter(([, number]) => number > 0);
  const told = parts.map(([kind, number]) => `${count(number)} ${KINDS[kind]}`).join(", ");
  element.setAttribute("aria-label", `${count(request.prompt_tokens)} prompt tokens: ${told}`);
  return element;
}

/** The segments of a request as a list: title, status, reason, tokens, time. */
export function segmentList(request) {
  const list = make("ol", { class: "segments" });
  for (const segment of request.segments) {
    const reason = segment.miss_reason ? ` · ${segment.miss_reason}` : "";
    const cold = segment.cold_ms > 0 ? ` · ${milliseconds(segment.cold_ms)}` : "";
    list.append(
      make(
        "li",
        { title: described(segment), "data-status": segment.status },
        make("span", { class: "name" }, nameOf(segment)),
        make("span", { class: `status ${segment.status}` }, segment.status),
        make(
          "span",
          { class: "quiet" },
          `${count(segment.reused_tokens)} of ${count(segment.tokens)} tokens reused` +
            `${reason}${cold}`,
        ),
      ),
    );
  }
  const more = request.num_segments - request.segments.length;
  if (more > 0) list.append(make("li", { class: "quiet" }, `and ${count(more)} more`));
  return list;
}

/** Times and totals of a request as terms and values. */
export function numbersOf(request) {
  const timing = request.timing_ms;
  const hits = percent(request.cached_tokens, request.prompt_tokens);
  return make(
    "dl",
    { class: "numbers" },
    ...[
      ["reused", `${count(request.cached_tokens)} of ${count(request.prompt_tokens)} (${hits})`],
      ["queue", milliseconds(timing.queue)],
      ["cold", milliseconds(timing.cold)],
      ["first token", milliseconds(timing.ttft)],
      ["whole", milliseconds(timing.total)],
      ["reply", `${count(request.completion_tokens)} tokens`],
    ].map(([term, value]) => make("div", {}, make("dt", {}, term), make("dd", {}, value))),
  );
}

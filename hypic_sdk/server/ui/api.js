// Calls of this server, and of no other: every address is relative to the page's own.

const KEY_NAME = "hypic-key";

/** The bearer key of this tab; it is gone when the tab is closed. */
export const key = {
  get: () => sessionStorage.getItem(KEY_NAME) ?? "",
  set: (value) => {
    if (value) sessionStorage.setItem(KEY_NAME, value);
    else sessionStorage.removeItem(KEY_NAME);
  },
};

/** A refusal: the server's own message, its code and its status. */
export class Refusal extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answered ${status}`);
    this.status = status;
    this.code = error?.code ?? "unknown";
  }
}

async function call(method, path, body, signal) {
  const headers = {};
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(path, {
    method,
    headers,
    signal,
    body: body === undefined ? undefined : JSON.stringify(body),
    credentials: "omit",
    cache: "no-store",
  });
  if (!response.ok) {
    const told = await response.json().catch(() => null);
    throw new Refusal(response.status, told?.error);
  }
  return response;
}

export async function get(path, signal) {
  return (await call("GET", path, undefined, signal)).json();
}

export async function post(path, body, signal) {
  return (await call("POST", path, body, signal)).json();
}

/**
 * Ask, and be told of the answer as it comes.  `onText` gets each piece, `onReasoning` what the model
 * thinks first.  Gives the id of the request, its cache report and when its first piece came.
 */
export async function ask(body, { onText, onReasoning, signal }) {
  const begun = performance.now();
  const response = await call("POST", "v1/chat/completions", { ...body, stream: true }, signal);
  const told = { id: response.headers.get("X-Request-Id"), report: null, firstMs: null };
  for await (const data of events(response.body)) {
    if (data === "[DONE]") break;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Refusal(200, chunk.error);
    if (chunk.hypic) told.report = chunk.hypic;
    const delta = chunk.choices?.[0]?.delta ?? {};
    if ((delta.content || delta.reasoning_content) && told.firstMs === null) {
      told.firstMs = performance.now() - begun;
    }
    if (delta.reasoning_content) onReasoning(delta.reasoning_content);
    if (delta.content) onText(delta.content);
  }
  return told;
}

/** The data of server-sent events. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      for (const line of block.split("\n")) {
        if (line.startsWith("data: ")) yield line.slice("data: ".length);
      }
    }
  }
}

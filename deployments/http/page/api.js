// The server's API as the page uses it: the key, errors, and streams of server-sent events.
//
// Paths are relative, so that the page also works below a route prefix.

const KEY = "qwen3-a8w8.key";

/** What the server refused or what went wrong on the way; `message` is shown as it is. */
export class ApiError extends Error {
  constructor(message, status = 0, retryAfterS = 0) {
    super(message);
    this.status = status;
    this.retryAfterS = retryAfterS;
  }
}

/** The API key, which the browser forgets with the tab. */
export const apiKey = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set(value) {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  },
};

/** JSON of a GET. Raises ApiError. */
export async function getJson(path, signal) {
  const response = await request(path, { signal });
  try {
    return await response.json();
  } catch {
    throw new ApiError("The server's answer isn't JSON.");
  }
}

/**
 * The events of a chat completion: `{data}` with a chunk, or `{comment}`.
 *
 * Raises ApiError for a refusal, an error in the stream, or a stream that ends before its end;
 * whatever `signal` was aborted with if it was.
 */
export async function* streamChat(body, signal) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  for await (const event of serverSentEvents(response.body)) {
    if (event.data === "[DONE]") return;
    if (event.data === undefined) {
      yield event;
      continue;
    }
    const data = JSON.parse(event.data);
    if (data.error) throw new ApiError(data.error.message);
    yield { data };
  }
  throw new ApiError("The connection was lost before the end of the answer.");
}

async function request(path, options) {
  const headers = { ...options.headers };
  // A header has bytes: anything else can't be a key.
  if (apiKey.get()) headers.Authorization = `Bearer ${apiKey.get().replace(/[^\x21-\x7e]/g, "")}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "same-origin" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError("The server can't be reached.");
  }
  if (response.ok) return response;
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message ?? message;
  } catch {
    // Not from the application: a proxy's own page says no more than the status.
  }
  throw new ApiError(message, response.status, Number(response.headers.get("retry-after")) || 0);
}

/** Lines of a byte stream as `{data}` and `{comment}`; lines of one event belong together. */
async function* serverSentEvents(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines.map((each) => each.replace(/\r$/, ""))) {
        if (line.startsWith(":")) yield { comment: line.slice(1).trim() };
        else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
        else if (line === "" && data.length) {
          yield { data: data.join("\n") };
          data = [];
        }
      }
    }
  } catch (error) {
    if (error instanceof TypeError) throw new ApiError("The connection to the server was lost.");
    throw error;
  } finally {
    reader.cancel().catch(() => {});
  }
}

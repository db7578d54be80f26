// What the server sends: events read from a fetch, since only that can show a token in a header.
// The token is in this module's memory and nowhere else.
let token = null;

export const signedIn = () => token !== null;
export function signIn(text) { token = text; }
export function signOut() { token = null; }

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `status ${status}`);
    this.status = status;
    this.remedy = body.remedy || "";
  }
}

async function problemOf(answer) {
  try { return new Problem(answer.status, await answer.json()); }
  catch { return new Problem(answer.status, {}); }
}

export async function ask(path, { method = "GET", body, signal } = {}) {
  const headers = { Authorization: `Bearer ${token}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, {
    method, headers, signal, cache: "no-store", credentials: "omit", redirect: "error",
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (!answer.ok) throw await problemOf(answer);
  return answer;
}

// Calls take(name, data) for each event, until the signal aborts it or it ends.
async function read(answer, take) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    let end;
    while ((end = rest.indexOf("\n\n")) >= 0) {
      const text = rest.slice(0, end);
      rest = rest.slice(end + 2);
      let name = "message", data = "";
      for (const line of text.split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data) take(name, JSON.parse(data));
    }
  }
}

// Follows a path for as long as it is not stopped: tries again each second. `told` gets null while
// all is well, else the problem. A token that is refused is not tried again.
export function follow(path, take, told) {
  const stop = new AbortController();
  (async () => {
    while (!stop.signal.aborted) {
      let problem = null;
      try {
        const answer = await ask(path, { signal: stop.signal });
        told(null);
        await read(answer, (name, data) => {
          if (name === "problem") problem = new Problem(data.status, data);
          else if (!stop.signal.aborted) take(name, data);
        });
        problem ||= new Problem(0, { detail: "the connection ended" });
      } catch (error) {
        problem = error instanceof Problem ? error
          : new Problem(0, { detail: "the server of this page does not answer" });
      }
      if (stop.signal.aborted) return;
      told(problem);
      if (problem.status === 401) return;
      await new Promise((next) => setTimeout(next, 1000));
    }
  })();
  return () => stop.abort();
}

// A program that opened the page may have put a ticket into its address: good once.
export async function redeem(ticket) {
  const answer = await fetch("/v1/ticket", { method: "POST", body: ticket, cache: "no-store", credentials: "omit" });
  if (!answer.ok) throw await problemOf(answer);
  token = (await answer.json()).token;
}

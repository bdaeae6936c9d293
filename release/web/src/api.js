// Asks the server that gave this page. The browser sends the key that opened the page along.

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

// Every answer that is no success is a Refused with the server's own sentence.
export async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server does not answer.");
  }
  if (answer.ok) return answer;
  const text = await answer.text();
  let told = text;
  try {
    const { error } = JSON.parse(text);
    told = typeof error === "string" ? error : error.message;
  } catch {
    // A proxy's page, as it is.
  }
  const later = answer.headers.get("retry-after");
  const again = later ? ` Try again in ${later} s.` : "";
  throw new Refused(answer.status, `${answer.status}: ${told || answer.statusText}${again}`);
}

export async function get(path) {
  return (await ask(path)).json();
}

export async function post(path, body, signal) {
  const headers = { "content-type": "application/json" };
  return ask(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

// Gives the data of each event of a stream; comments between them are left out.
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
    }
  }
}

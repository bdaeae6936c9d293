// The form that runs a model: tensors as JSON, an image, a recording, a text or a conversation.

import { useEffect, useState } from "preact/hooks";
import { ask, post } from "./api.js";
import { Chat } from "./chat.js";
import { html } from "./html.js";
import { Microphone } from "./microphone.js";
import { chosen, models } from "./models.js";

const LONGEST = 4000;

function Answer({ state }) {
  if (!state) return html`<p role="status"></p>`;
  if (state.error) return html`<p role="alert" class="bad">${state.error}</p>`;
  const text = state.text ?? "";
  const more = text.length - LONGEST;
  return html`<div>
    <p role="status">${state.busy ? "Running …" : `Answered in ${state.ms.toFixed(1)} ms`}</p>
    ${state.image && html`<img src=${state.image} alt="The image with what was found" />`}
    ${state.wav && html`<audio controls src=${`data:audio/wav;base64,${state.wav}`} />`}
    ${state.rows?.length > 0 && html`<${Found} rows=${state.rows} />`}
    ${text && html`<pre tabindex="0" role="region" aria-label="Answer">${text.slice(0, LONGEST)}${
      more > 0 && ` … and ${more} characters more`}</pre>`}
  </div>`;
}

function Found({ rows }) {
  const box = (row) => row.box?.map((v) => Math.round(v)).join(", ") ?? "";
  return html`<div class="scroll" tabindex="0" role="region" aria-label="What was found"><table>
    <thead><tr><th scope="col">What</th><th scope="col" class="number">Score</th><th scope="col">Box</th></tr></thead>
    <tbody>${rows.map((row) => html`<tr>
      <td>${row.label}</td><td class="number">${row.score.toFixed(3)}</td><td>${box(row)}</td>
    </tr>`)}</tbody>
  </table></div>`;
}

// Runs something and shows what came of it.
function useRun() {
  const [state, setState] = useState(null);
  useEffect(() => () => state?.image && URL.revokeObjectURL(state.image), [state]);
  const run = async (event, work) => {
    event.preventDefault();
    setState({ busy: true });
    const start = performance.now();
    try {
      const found = await work();
      setState({ ms: performance.now() - start, ...found });
    } catch (error) {
      setState({ error: error.message });
    }
  };
  return [state, run];
}

const count = (shape) => shape.reduce((a, b) => a * b, 1);

function example(inputs) {
  const parts = inputs.map(({ name, datatype, shape }) => {
    const sizes = shape.map((size) => (size < 0 ? 1 : size));
    const data = datatype === "BYTES" ? "text" : datatype === "BOOL" ? false : 0;
    return { name, datatype, shape: sizes, data };
  });
  return JSON.stringify({ inputs: parts }, null, 2);
}

// "data" that is one value stands for as many as the shape says, "random" for numbers below 1.
export function spread(body) {
  for (const input of body.inputs ?? []) {
    const { data, datatype, shape } = input;
    if (Array.isArray(data) || data === undefined) continue;
    const chance = data === "random" && datatype.startsWith("FP");
    input.data = Array.from({ length: count(shape) }, () => (chance ? Math.random() : data));
  }
  return body;
}

function Tensors({ model }) {
  const [text, setText] = useState(() => example(model.inputs));
  const [state, run] = useRun();
  const send = (event) => run(event, async () => {
    const answer = await post(`/v2/models/${encodeURIComponent(model.name)}/infer`, spread(JSON.parse(text)));
    return { text: JSON.stringify(await answer.json(), null, 1) };
  });
  return html`<form onSubmit=${send}>
    <label for="tensors">Request, as the Open Inference Protocol has it</label>
    <textarea id="tensors" rows="10" class="code" spellcheck=${false} value=${text}
      onInput=${(e) => setText(e.target.value)} aria-describedby="tensors-help"></textarea>
    <p id="tensors-help" class="help">As data, one value stands for all of them; "random" for
      numbers from 0 to 1.</p>
    <div class="row"><button type="submit">Run</button></div>
    <${Answer} state=${state} />
  </form>`;
}

const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

function Upload({ model, kind, accept }) {
  const [file, setFile] = useState(null);
  const [state, run] = useRun();
  const send = (event) => run(event, async () => {
    if (!file) throw new Error(`Choose ${kind} first.`);
    const form = new FormData();
    form.append("file", file);
    if (kind === "an image") form.append("draw", "both");
    const path = `/v1/pipelines/${encodeURIComponent(model.name)}`;
    const { results, drawn } = await (await ask(path, { method: "POST", body: form })).json();
    const rows = results.filter((each) => each.label !== undefined && each.score !== undefined);
    const image = drawn && URL.createObjectURL(new Blob([bytes(drawn)], { type: "image/png" }));
    return { image, rows, text: rows.length === results.length && rows.length ? "" : JSON.stringify(results, null, 1) };
  });
  return html`<form onSubmit=${send}>
    <label for="file">Choose ${kind}</label>
    <input id="file" type="file" accept=${accept} onChange=${(e) => setFile(e.target.files[0])} />
    ${kind === "a recording" && html`<${Microphone} onFile=${setFile} />`}
    <div class="row"><button type="submit">Run</button></div>
    <${Answer} state=${state} />
  </form>`;
}

function Text({ model }) {
  const [text, setText] = useState("");
  const [state, run] = useRun();
  const send = (event) => run(event, async () => {
    const answer = await post(`/v1/pipelines/${encodeURIComponent(model.name)}`, { text });
    const { results } = await answer.json();
    const wav = results[0]?.wav;
    // What is played is not printed.
    if (wav) delete results[0].wav;
    return { wav, text: JSON.stringify(results, null, 1) };
  });
  return html`<form onSubmit=${send}>
    <label for="text">Text</label>
    <textarea id="text" rows="4" value=${text} onInput=${(e) => setText(e.target.value)}></textarea>
    <div class="row"><button type="submit">Run</button></div>
    <${Answer} state=${state} />
  </form>`;
}

function Form({ model }) {
  if (!model) return html`<p>No model is served.</p>`;
  if (!model.ready) return html`<p>${model.name} is not ready: ${model.state}</p>`;
  if (model.kind === "text") return html`<${Chat} model=${model.name} />`;
  switch (model.task?.takes) {
    case "an image":
      return html`<${Upload} model=${model} kind="an image" accept="image/*" />`;
    case "a recording":
      return html`<${Upload} model=${model} kind="a recording" accept="audio/*" />`;
    case "a text":
      return html`<${Text} model=${model} />`;
  }
  return model.inputs ? html`<${Tensors} model=${model} />` : html`<p>${model.state}</p>`;
}

export function Try() {
  const model = models.value.find((each) => each.name === chosen.value);
  return html`<section aria-labelledby="try-title">
    <h2 id="try-title">Try</h2>
    <label for="try">Model</label>
    <select id="try" value=${chosen.value} onChange=${(e) => { chosen.value = e.target.value; }}>
      ${models.value.map(({ name }) => html`<option key=${name} value=${name}>${name}</option>`)}
    </select>
    <${Form} key=${`${model?.name} ${model?.ready}`} model=${model} />
  </section>`;
}

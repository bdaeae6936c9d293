// The models that the server has, and the table of them.

import { signal } from "@preact/signals";
import { get, post } from "./api.js";
import { html } from "./html.js";

export const models = signal([]);
export const chosen = signal("");
export const problem = signal("");

const known = new Map();

// Metadata of a model changes when it is loaded anew at most, so it is asked for once per state.
async function detail(name, ready) {
  const key = `${name} ${ready}`;
  if (!known.has(key)) known.set(key, await get(`/v2/models/${encodeURIComponent(name)}`));
  return known.get(key);
}

export async function refresh() {
  try {
    const [listed, tasks, index] = await Promise.all([
      get("/v1/models"),
      get("/v1/pipelines"),
      post("/v2/repository/index", {}).then((answer) => answer.json()),
    ]);
    const takes = new Map(tasks.data.map((task) => [task.name, task]));
    const states = new Map(index.map((each) => [each.name, each.reason || "ready"]));
    const found = listed.data.map(async ({ id, kind, ready }) => {
      const { inputs, outputs } = kind === "tensors" ? await detail(id, ready) : {};
      const state = states.get(id) ?? (ready ? "ready" : "loading");
      return { name: id, kind, ready, state, task: takes.get(id), inputs, outputs };
    });
    models.value = await Promise.all(found);
    if (!models.value.some((model) => model.name === chosen.value)) {
      chosen.value = models.value[0]?.name ?? "";
    }
    problem.value = "";
  } catch (error) {
    problem.value = error.message;
  }
}

const shape = (tensor) => tensor.shape.map((size) => (size < 0 ? "any" : size)).join(" × ");
const told = (tensors) => tensors.map((t) => html`<div>${t.name}: ${t.datatype} ${shape(t)}</div>`);

function Row({ model }) {
  const takes = model.task?.takes ?? (model.kind === "text" ? "a conversation" : "tensors");
  const gives = model.task?.gives ?? (model.kind === "text" ? "text" : "tensors");
  return html`<tr>
    <th scope="row">${model.name}</th>
    <td class="state"><span class=${model.ready ? "good" : "bad"}>${model.state}</span></td>
    <td>${takes}${model.inputs && told(model.inputs)}</td>
    <td>${gives}${model.outputs && told(model.outputs)}</td>
    <td><button type="button" aria-label=${`Try ${model.name}`} onClick=${() => pick(model.name)}>
      Try
    </button></td>
  </tr>`;
}

function pick(name) {
  chosen.value = name;
  document.getElementById("try").focus();
}

export function Models() {
  return html`<section aria-labelledby="models-title">
    <h2 id="models-title">Models</h2>
    <div class="scroll" tabindex="0" role="region" aria-label="Table of models">
      <table>
        <thead><tr>
          <th scope="col">Name</th><th scope="col">State</th><th scope="col">Takes</th>
          <th scope="col">Gives</th><td></td>
        </tr></thead>
        <tbody>${models.value.map((model) => html`<${Row} key=${model.name} model=${model} />`)}</tbody>
      </table>
    </div>
  </section>`;
}

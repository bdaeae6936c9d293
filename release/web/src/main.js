import { render } from "preact";
import { html } from "./html.js";
import { Live, look } from "./live.js";
import { Models, models, problem, refresh } from "./models.js";
import { Try } from "./try.js";

const LOOK_MS = 2000;
const LIST_MS = 10000;

function Page() {
  return html`
    <p role="alert" class=${problem.value ? "bad banner" : ""}>${problem.value}</p>
    ${models.value.length > 0 && html`<${Models} /><${Try} />`}
    <section aria-label="Live figures"><${Live} /></section>`;
}

render(html`<${Page} />`, document.getElementById("page"));
refresh();
look();
setInterval(look, LOOK_MS);
// Soon where one is loading, seldom where nothing changes.
let listed = 0;
setInterval(() => {
  const soon = !models.value.length || models.value.some((model) => !model.ready);
  listed += LOOK_MS;
  if (document.hidden || !(soon || listed >= LIST_MS)) return;
  listed = 0;
  refresh();
}, LOOK_MS);

// Plots of the last minutes, each with a table beside it.

import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { ask } from "./api.js";
import { html } from "./html.js";
import { between, read } from "./metrics.js";
import { models, problem } from "./models.js";

const MOST = 150;
const COLOURS = 6;
const DASHES = [[], [8, 4], [2, 3], [8, 3, 2, 3], [12, 3], [4, 4]];

// Each frame: a time in seconds, and the figures of each model by name.
export const frames = signal([]);

let before = null;

export async function look() {
  if (document.hidden) return;
  try {
    const now = performance.now() / 1e3;
    const found = read(await (await ask("/metrics")).text());
    if (before !== null) {
      const seconds = now - before.time;
      const figures = new Map();
      for (const [name, counts] of found) {
        figures.set(name, between(counts, before.found.get(name), seconds));
      }
      frames.value = [...frames.value.slice(1 - MOST), { time: Date.now() / 1e3, figures }];
    }
    before = { time: now, found };
  } catch (error) {
    before = null;
    problem.value = error.message;
  }
}

const scheme = matchMedia("(prefers-color-scheme: dark)");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const hue = (i) => colour(`--line-${i % COLOURS}`);

function draw(place, names, unit) {
  const axis = { stroke: colour("--text"), grid: { stroke: colour("--edge"), width: 1 } };
  const series = names.map((name, i) => ({
    label: name, stroke: hue(i), width: 2, dash: DASHES[i % DASHES.length], spanGaps: false,
  }));
  const range = (_, __, most) => [0, Math.max(most ?? 0, 1) * 1.1];
  return new uPlot({
    width: Math.max(place.clientWidth, 200), height: 180, legend: { show: false },
    scales: { y: { range } }, axes: [axis, { ...axis, size: 56, label: unit, labelSize: 16 }],
    series: [{}, ...series],
  }, [[], ...names.map(() => [])], place);
}

function Plot({ label, names, field, unit }) {
  const place = useRef(null);
  const plot = useRef(null);
  const key = names.join(" ");
  useEffect(() => {
    const make = () => {
      plot.current?.destroy();
      plot.current = draw(place.current, names, unit);
      fill();
    };
    const sized = new ResizeObserver(() => {
      plot.current?.setSize({ width: Math.max(place.current.clientWidth, 200), height: 180 });
    });
    make();
    sized.observe(place.current);
    scheme.addEventListener("change", make);
    return () => {
      scheme.removeEventListener("change", make);
      sized.disconnect();
      plot.current.destroy();
    };
  }, [key]);
  const fill = () => {
    const times = frames.value.map((frame) => frame.time);
    const lines = names.map((name) => frames.value.map((f) => f.figures.get(name)?.[field] ?? null));
    plot.current?.setData([times, ...lines]);
  };
  useEffect(fill, [frames.value]);
  return html`<div class="plot" role="img" aria-label=${label} ref=${place}></div>`;
}

const number = (value) => {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return value.toLocaleString(undefined, { maximumFractionDigits: value < 10 ? 2 : 0 });
};
const largest = (name, field) => {
  const found = frames.value.map((f) => f.figures.get(name)?.[field]).filter((v) => v != null);
  return found.length ? Math.max(...found) : null;
};

function Swatch({ index }) {
  const dash = DASHES[index % DASHES.length].join(" ");
  return html`<svg width="24" height="8" aria-hidden="true"><line x1="0" y1="4" x2="24" y2="4"
    class=${`line-${index % COLOURS}`} stroke-width="3" stroke-dasharray=${dash} /></svg>`;
}

function Figure({ title, field, unit, columns, names }) {
  const last = frames.value.at(-1)?.figures;
  const id = `live-${field}`;
  return html`<section class="live" aria-labelledby=${id}>
    <h3 id=${id}>${title}</h3>
    <${Plot} label=${`${title}, ${unit}; the table has the figures`} names=${names} field=${field}
      unit=${unit} />
    <div class="scroll" tabindex="0" role="region" aria-label=${`Table of ${title.toLowerCase()}`}>
      <table>
        <thead><tr><th scope="col">Model</th>
          ${columns.map(([head]) => html`<th scope="col" class="number">${head}</th>`)}
        </tr></thead>
        <tbody>${names.map((name, i) => html`<tr key=${name}>
          <th scope="row"><${Swatch} index=${i} /> ${name}</th>
          ${columns.map(([, value]) => html`<td class="number">${number(value(last?.get(name) ?? {}, name))}</td>`)}
        </tr>`)}</tbody>
      </table>
    </div>
  </section>`;
}

export function Live() {
  const last = frames.value.at(-1)?.figures ?? new Map();
  // Each model keeps its colour.
  const names = models.value.map((model) => model.name).filter((name) => last.has(name));
  const caching = names.filter((name) => last.get(name).cache !== null);
  if (!names.length) return html`<h2>Live</h2><p>The first figures come in some seconds.</p>`;
  const most = (field) => (_, name) => largest(name, field);
  return html`<h2>Live</h2>
    <div class="figures">
      <${Figure} title="Latency" field="p50" unit="ms, median" names=${names} columns=${[
        ["Median, ms", (f) => f.p50], ["99 %, ms", (f) => f.p99], ["Largest median, ms", most("p50")],
      ]} />
      <${Figure} title="Throughput" field="rate" unit="requests/s" names=${names} columns=${[
        ["Requests/s", (f) => f.rate], ["Largest", most("rate")],
      ]} />
      <${Figure} title="Queue" field="waiting" unit="requests" names=${names} columns=${[
        ["Without an answer", (f) => f.waiting], ["Largest", most("waiting")],
      ]} />
      ${caching.length > 0 && html`<${Figure} title="Cache" field="cache" unit="% of pages"
        names=${caching} columns=${[
          ["In use, %", (f) => f.cache], ["Kept for later, %", (f) => f.kept],
          ["Largest use, %", most("cache")],
        ]} />`}
    </div>`;
}

// What Prometheus reads, as figures of each model between two looks.

const LINE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

// Returns counters by model.
export function read(text) {
  const found = new Map();
  const of = (name) => {
    if (!found.has(name)) found.set(name, { requests: 0, buckets: [], waiting: 0 });
    return found.get(name);
  };
  for (const line of text.split("\n")) {
    const match = LINE.exec(line);
    if (!match?.[2]) continue;
    const labels = Object.fromEntries([...match[2].matchAll(LABEL)].map((m) => [m[1], m[2]]));
    if (!labels.model) continue;
    const value = Number(match[3]);
    switch (match[1]) {
      case "edgeinfer_requests_total":
        of(labels.model).requests += value;
        break;
      case "edgeinfer_request_seconds_bucket":
        of(labels.model).buckets.push([Number(labels.le.replace("+Inf", "Infinity")), value]);
        break;
      case "edgeinfer_waiting_requests":
        of(labels.model).waiting = value;
        break;
      case "edgeinfer_llm_pages":
        of(labels.model).pages = value;
        break;
      case "edgeinfer_llm_pages_used":
        of(labels.model).used = value;
        break;
      case "edgeinfer_llm_pages_kept":
        of(labels.model).kept = value;
        break;
    }
  }
  return found;
}

// Returns the time in milliseconds that a share of the requests stayed below; null without any.
function below(share, buckets, before) {
  const counts = buckets.map(([end, count], i) => [end, count - (before?.buckets[i]?.[1] ?? 0)]);
  const all = counts.at(-1)?.[1] ?? 0;
  if (all <= 0) return null;
  let start = 0;
  let fewer = 0;
  for (const [end, count] of counts) {
    if (count >= share * all) {
      if (!Number.isFinite(end)) return start * 1e3;
      return (start + ((share * all - fewer) / (count - fewer)) * (end - start)) * 1e3;
    }
    [start, fewer] = [end, count];
  }
  return start * 1e3;
}

// Returns what a model did between two looks, `seconds` apart.
export function between(now, before, seconds) {
  const restarted = before && now.requests < before.requests;
  const last = restarted ? undefined : before;
  return {
    p50: below(0.5, now.buckets, last),
    p99: below(0.99, now.buckets, last),
    rate: (now.requests - (last?.requests ?? 0)) / seconds,
    waiting: now.waiting,
    cache: now.pages ? (100 * now.used) / now.pages : null,
    kept: now.pages ? (100 * now.kept) / now.pages : null,
  };
}

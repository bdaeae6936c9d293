// A conversation with a language model, as it is said.

import { useEffect, useRef, useState } from "preact/hooks";
import { events, post } from "./api.js";
import { html } from "./html.js";

const WHO = { user: "You", assistant: "Model" };

export function Chat({ model }) {
  const [turns, setTurns] = useState([]);
  const [text, setText] = useState("");
  const [limit, setLimit] = useState(256);
  const [heat, setHeat] = useState(0.7);
  const [note, setNote] = useState("");
  const running = useRef(null);
  const log = useRef(null);
  useEffect(() => () => running.current?.abort(), []);
  useEffect(() => {
    log.current.scrollTop = log.current.scrollHeight;
  }, [turns]);

  async function send(event) {
    event.preventDefault();
    if (!text.trim() || running.current) return;
    const said = [...turns, { role: "user", content: text }];
    setTurns([...said, { role: "assistant", content: "" }]);
    setText("");
    setNote("");
    running.current = new AbortController();
    const start = performance.now();
    let [answer, first, tokens] = ["", null, 0];
    try {
      const stream = await post("/v1/chat/completions", {
        model, messages: said, stream: true, stream_options: { include_usage: true },
        max_tokens: limit, temperature: heat,
      }, running.current.signal);
      for await (const part of events(stream)) {
        if (part.error) throw new Error(part.error.message);
        tokens = part.usage?.completion_tokens ?? tokens;
        const more = part.choices[0]?.delta?.content;
        if (!more) continue;
        first ??= performance.now() - start;
        answer += more;
        setTurns([...said, { role: "assistant", content: answer }]);
      }
      const seconds = (performance.now() - start) / 1e3;
      setNote(`${tokens} tokens in ${seconds.toFixed(1)} s, the first after ${Math.round(first ?? 0)} ms`);
    } catch (error) {
      const stopped = error.name === "AbortError";
      setNote(stopped ? "Stopped." : error.message);
      // What was not answered can be changed and sent again.
      if (!answer) {
        setTurns(turns);
        setText(said.at(-1).content);
      }
    } finally {
      running.current = null;
    }
  }

  const enter = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
  };
  return html`<form onSubmit=${send}>
    <div class="log" role="log" tabindex="0" aria-label="Conversation" ref=${log}>
      ${turns.map((turn, i) => html`<p key=${i} class=${turn.role}>
        <strong>${WHO[turn.role]}:</strong> ${turn.content}
      </p>`)}
    </div>
    <label for="said">Message</label>
    <textarea id="said" rows="3" value=${text} onInput=${(e) => setText(e.target.value)}
      onKeyDown=${enter} aria-describedby="said-help"></textarea>
    <p id="said-help" class="help">Enter sends, Shift+Enter begins a line.</p>
    <div class="row">
      <label>Most tokens <input type="number" min="1" value=${limit}
        onInput=${(e) => setLimit(Number(e.target.value) || 1)} /></label>
      <label>Temperature <input type="number" min="0" max="2" step="0.1" value=${heat}
        onInput=${(e) => setHeat(Number(e.target.value))} /></label>
      <button type="submit">Send</button>
      <button type="button" onClick=${() => running.current?.abort()}>Stop</button>
      <button type="button" onClick=${() => { setTurns([]); setNote(""); }}>Clear</button>
    </div>
    <p role="status">${note}</p>
  </form>`;
}

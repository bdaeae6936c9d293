// The microphone's sound as a WAV file, which every server reads: browsers record in formats of their own.
import { useState } from "preact/hooks";
import { html } from "./html.js";

const RATE = 16000;

// One channel of float32; the head in words: "RIFF", size, "WAVE", "fmt ", … "data", size.
function wav(samples) {
  const size = samples.byteLength;
  const head = [0x46464952, size + 36, 0x45564157, 0x20746d66, 16, 0x10003, RATE, 4 * RATE, 0x200004, 0x61746164, size];
  return new File([Uint32Array.from(head), samples], "recording.wav");
}

// Begins to record; gives what ends it and returns the file.
async function begin() {
  if (!navigator.mediaDevices) throw new Error("The microphone needs https or this machine.");
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const recorder = new MediaRecorder(stream);
  recorder.start();
  return async () => {
    const part = await new Promise((resolve) => {
      recorder.ondataavailable = resolve;
      recorder.stop();
    });
    stream.getTracks().forEach((track) => track.stop());
    const sound = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await part.data.arrayBuffer());
    return wav(sound.getChannelData(0));
  };
}

export function Microphone({ onFile }) {
  const [stop, setStop] = useState();
  const [told, tell] = useState("");
  const press = async () => {
    let next;
    try {
      if (stop) onFile(await stop());
      else next = await begin();
      tell(stop ? "Recorded" : "Recording …");
    } catch (error) {
      tell(error.message);
    }
    setStop(() => next);
  };
  return html`<div class="row">
    <button type="button" onClick=${press}>${stop ? "Stop" : "Record"}</button>
    <span role="status">${told}</span>
  </div>`;
}

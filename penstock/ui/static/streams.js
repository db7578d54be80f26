// Streams with their readers, the live tail of one, and the answer to `explain LSN`.
import { html, useEffect, useRef, useState } from "/vendor/preact.js";
import { Figure, Level, Section } from "/parts.js";
import { ask, follow } from "/feed.js";

const KEPT = 200;

export function Streams({ streams, choose }) {
  const [followed, setFollowed] = useState(null);
  const [wanted, setWanted] = useState("");
  const some = streams.filter((one) => one.name.toLowerCase().includes(wanted.toLowerCase()));
  return html`<${Section} id="streams" title="Streams" note=${streams.length || ""}>
    ${streams.length > 8 && html`<input class="filter" type="search" placeholder="Find a stream" aria-label="Find a stream"
      value=${wanted} onInput=${(event) => setWanted(event.target.value)} />`}
    ${!streams.length && html`<p class="empty">No stream yet: <code>penstock stream create</code> makes one.</p>`}
    <ul class="streams">${some.slice(0, 200).map((one) => html`<li key=${one.key}>
      <div class="stream"><b class="mono">${one.name}</b>
        <button type="button" aria-expanded=${followed === one.key}
          onClick=${() => setFollowed(followed === one.key ? null : one.key)}>${followed === one.key ? "close" : "follow"}</button>
        <small class="mono ddl">${one.ddl}</small>
        <small>${one.written.length ? `result of ${one.written.join(", ")}` : ""}</small></div>
      <ul class="readers">${one.readers.map((reader) => html`<li key=${reader.kind + reader.key}>
        <${Level} level=${reader.level}>${reader.kind}${" "}
          ${reader.kind === "query" ? html`<button class="link" type="button" onClick=${() => choose(reader.key)}>${reader.name}</button>` : reader.name}
        <//><span>${reader.state === "running" ? "" : `${reader.state}, `}lag <${Figure} of=${reader.lag} query=${reader.key} />, <${Figure} of=${reader.rows} query=${reader.key} /> rows</span></li>`)}
        ${!one.readers.length && html`<li class="empty">nobody reads it</li>`}</ul>
      ${followed === one.key && html`<${Tail} stream=${one.key} name=${one.name} />`}</li>`)}</ul>
    ${some.length > 200 && html`<p class="empty">And ${some.length - 200} more: find them by name.</p>`}<//>`;
}

function Tail({ stream, name }) {
  const [rows, setRows] = useState([]);
  const [told, setTold] = useState("Waiting for rows.");
  const [wanted, setWanted] = useState("");
  const [paused, setPaused] = useState(false);
  const isPaused = useRef(false);
  isPaused.current = paused;
  useEffect(() => {
    const path = `/v1/streams/${encodeURIComponent(stream)}/tail?filter=${encodeURIComponent(wanted)}`;
    return follow(path, (event, data) => {
      if (isPaused.current || event !== "rows") return;
      if (data.rows.length) setRows((before) => [...data.rows.reverse(), ...before].slice(0, KEPT));
      const looked = data.looked < data.came ? `, ${data.looked.toLocaleString()} of them looked at` : "";
      setTold(`${data.came.toLocaleString()} rows in the last second${looked}; ${data.left_out.toLocaleString()} not shown.`);
    }, (problem) => problem && setTold(`${problem.message}. ${problem.remedy || ""}`));
  }, [stream, wanted]);
  return html`<div class="tail"><div class="bar">
      <input type="search" placeholder="Only rows that contain" aria-label=${`Only rows of ${name} that contain`}
        onChange=${(event) => setWanted(event.target.value)} />
      <button type="button" aria-pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? "go on" : "pause"}</button>
      <small role="status">${paused ? "Paused: what comes now is not shown." : told}</small></div>
    <ol tabindex="0" aria-label=${`Rows of ${name}, the newest first`}>${rows.map((one, index) =>
      html`<li key=${index}><span class="lsn">${one.lsn}</span><time>${new Date(one.time_ms).toLocaleTimeString("en-GB")}</time><code>${one.row}</code></li>`)}</ol></div>`;
}

export function Explain() {
  const [found, setFound] = useState(null);
  const [problem, setProblem] = useState(null);
  async function submit(event) {
    event.preventDefault();
    const lsn = new FormData(event.target).get("lsn").trim();
    try {
      const answer = await (await ask(`/v1/explain/${encodeURIComponent(lsn)}`)).json();
      setFound(answer); setProblem(null);
    } catch (error) { setFound(null); setProblem(error); }
  }
  return html`<${Section} id="explain" title="Explain an entry">
    <form class="bar" onSubmit=${submit}><label>LSN <input name="lsn" inputmode="numeric" pattern="[0-9]+" required size="14" /></label>
      <button type="submit">explain</button></form>
    ${problem && html`<p role="alert" class="problem">${problem.message}. ${problem.remedy}</p>`}
    ${found && html`<dl class="pairs explained">${Object.entries(found).filter(([, value]) => value !== null)
      .map(([name, value]) => html`<div key=${name}><dt>${name.replaceAll("_", " ")}</dt><dd class="mono">${
        typeof value === "string" ? plain(value) : plain(JSON.stringify(value, null, 1).replaceAll(/\n\s*/g, " "))}</dd></div>`)}</dl>`}<//>`;
}

// As the server does with all that it shows: what is not to be read is escaped.
const plain = (text) => text.replace(/[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g,
  (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);

// The page: asks for the token once, follows the server's updates, shows them.
import { html, render, useEffect, useRef, useState } from "/vendor/preact.js";
import { Figure, Level, Pairs, Said, Section, Table, figures, narrow } from "/parts.js";
import { Graph } from "/graph.js";
import { Chart, Points, many, ms, seconds } from "/charts.js";
import { Explain, Streams } from "/streams.js";
import { ask, follow, redeem, signIn, signOut, signedIn } from "/feed.js";

const chosenInAddress = () => new URLSearchParams(location.hash.slice(1)).get("query");

function SignIn({ problem, done }) {
  function submit(event) {
    event.preventDefault();
    signIn(new FormData(event.target).get("token").trim());
    done();
  }
  return html`<main class="sign-in"><form onSubmit=${submit}>
    <h1><img src="/icon.svg" alt="" width="30" height="30" /> Penstock</h1>
    <label for="token">Token of the log</label>
    <input id="token" name="token" type="password" autocomplete="off" required autofocus />
    ${problem && html`<p role="alert" class="problem">${problem}</p>`}
    <button type="submit">look</button>
    <p class="hint">It is in the file <code>token</code> of the log's directory, or make one that allows less:
      <code>penstock token make --allow metrics --allow 'read:*' --allow 'run:*'</code>.
      This page keeps it in its memory only: close it, and it is forgotten.</p></form></main>`;
}

function Health({ health, away, choose }) {
  const words = { good: "well", warn: "slow", bad: "trouble", down: "down" };
  return html`<section id="health" class="health ${health.level}" aria-live="polite" aria-label="Health">
    <h1><${Level} level=${health.level}>${words[health.level]}<//> <span id="line">${health.title}</span></h1>
    ${health.problems.length > 0 && html`<ul>${health.problems.map((one, index) => html`<li key=${index} class=${one.level}>
      ${(health.problems.length > 1 || health.title !== one.what) && html`<b>${one.what}</b>`} <span><${Said} text=${one.do} /></span>
      ${one.query && html` <button class="link" type="button" onClick=${() => choose(one.query)}>show ${one.query}</button>`}</li>`)}</ul>`}
    ${health.count > health.problems.length && html`<p>And ${health.count - health.problems.length} more.</p>`}
  </section>`;
}

// What was asked for is below a long list.
function bringIntoView(part) {
  if (part && part.getBoundingClientRect().top > window.innerHeight * 0.8) part.scrollIntoView({ block: "start" });
}

const SORTS = { name: (one) => one.name, state: (one) => one.state };

function Queries({ queries, chosen, choose }) {
  const [by, setBy] = useState(null);
  const [wanted, setWanted] = useState("");
  const names = ["rate", "lag", "lag rows", "p50", "p99", "busiest task", "workers"];
  const value = (one) => by in SORTS ? SORTS[by](one) : -(one.figures[by][1] ?? -1);
  let rows = queries.filter((one) => one.name.toLowerCase().includes(wanted.toLowerCase()));
  if (by) rows = [...rows].sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0));
  const sorting = (name) => html`<button type="button" class="sort" aria-pressed=${by === name}
    onClick=${() => setBy(by === name ? null : name)}>${name}</button>`;
  return html`<${Section} id="queries" title="Queries" note=${queries.length || ""}>
    ${queries.length > 8 && html`<input class="filter" type="search" placeholder="Find a query" aria-label="Find a query"
      value=${wanted} onInput=${(event) => setWanted(event.target.value)} />`}
    ${!queries.length ? html`<p class="empty">No query yet: <code>penstock.start(df, to=…)</code> runs one.</p>` : html`
    <div class="wide" tabindex="0" role="region" aria-label="All queries"><table class="choice">
      <thead><tr><th scope="col">${sorting("name")}</th><th scope="col">${sorting("state")}</th>
        ${names.map((name) => html`<th key=${name} scope="col" class="num">${sorting(name)}</th>`)}</tr></thead>
      <tbody>${rows.slice(0, 200).map((one) => html`<tr key=${one.key} data-query=${one.key} class=${one.key === chosen ? "chosen" : ""}
          onClick=${() => { choose(one.key); bringIntoView(document.getElementById("query")); }}>
        <th scope="row"><button class="link" type="button" aria-current=${one.key === chosen ? "true" : undefined}>${one.name}</button></th>
        <td><${Level} level=${one.level}>${one.state}<//></td>
        ${names.map((name) => html`<td key=${name} class="num ${name === "busiest task" ? `heat ${one.heat}` : ""}">
          <${Figure} of=${one.figures[name]} query=${one.key} /></td>`)}</tr>`)}</tbody></table></div>`}<//>`;
}

function Actions({ query, may }) {
  const [asking, setAsking] = useState(null);
  const [told, setTold] = useState("");
  const box = useRef(null);
  useEffect(() => { if (asking) box.current.showModal(); }, [asking]);
  // What was about to be asked of a query that stops meanwhile is not asked of its next run.
  useEffect(() => { if (query.state !== "running") setAsking(null); }, [query.state]);
  if (query.state !== "running") return null;
  if (!may) return html`<p class="empty">This token may look at the query, not stop or rescale it.</p>`;
  async function sure(event) {
    event.preventDefault();
    const workers = Number(new FormData(event.target).get("workers"));
    const what = asking;
    box.current.close();
    try {
      const body = what === "rescale" ? { workers } : {};
      const done = await (await ask(`/v1/queries/${encodeURIComponent(query.key)}/${what}`, { method: "POST", body })).json();
      setTold(`Asked to ${what} (LSN ${done.asked_at_lsn}). What comes of it is shown above.`);
    } catch (error) { setTold(`${error.message}. ${error.remedy || ""}`); }
  }
  return html`<div class="bar actions">
    <button type="button" onClick=${() => setAsking("rescale")}>rescale…</button>
    <button type="button" class="danger" onClick=${() => setAsking("stop")}>stop…</button>
    <small role="status">${told}</small>
    <dialog ref=${box} onClose=${() => setAsking(null)}><form onSubmit=${sure}>
      ${asking === "stop" ? html`<p>Stop query <b>${query.name}</b>? It commits what it has worked on. Started again under its name, it goes on from there.</p>`
      : html`<p>Run query <b>${query.name}</b> with so many workers? Each needs a core of Spark's. With 0 it is suspended: it keeps its state and takes nothing in, until it gets workers again.</p>
        <label>workers <input name="workers" type="number" min="0" max="1000" required defaultValue=${query.wanted[1] || 1} /></label>`}
      <div class="bar"><button type="submit" class=${asking === "stop" ? "danger" : ""}>${asking}</button>
        <button type="button" autofocus onClick=${() => box.current.close()}>leave it</button></div></form></dialog></div>`;
}

function Plan({ query }) {
  const [plan, setPlan] = useState(null);
  useEffect(() => setPlan(null), [query]);
  async function toggle(event) {
    if (!event.target.open || plan) return;
    try { setPlan((await (await ask(`/v1/queries/${encodeURIComponent(query)}/plan`)).json()).plan); }
    catch (error) { setPlan(error.message); }
  }
  return html`<details key=${query} onToggle=${toggle}><summary>Plan (explain)</summary><pre class="plan" tabindex="0">${plan ?? "…"}</pre></details>`;
}

const TASK = ["busy", "waiting", "held up", "this step", "rate", "rows in", "rows out", "virtual nodes", "state rows",
  "state", "committed", "checkpoint", "its size", "failed", "instance", "began in", "copies"];

function Query({ query, points, count, may, down }) {
  const key = () => query.key;
  return html`<${Section} id="query" title=${`Query ${query.name}`} note=${query.state}>
    ${query.error && html`<p class="problem" role="alert">${query.error}</p>`}
    ${query.past && html`<p class="past">${query.past}</p>`}
    ${query.clock && html`<p class="past">${query.clock}</p>`}
    <${Actions} key=${query.key} query=${query} may=${may} />
    <${Graph} graph=${query.graph} query=${query.key} down=${down} />
    <${Plan} query=${query.key} />
    <div class="charts">
      <${Chart} key=${`${query.key} latency`} title="Append to visible" points=${points} count=${count} unit=${ms}
        series=${[["p50", "p50", "--calm"], ["p99", "p99", "--hot"]]} />
      <${Chart} key=${`${query.key} rows`} title="Rows per second, processed" points=${points} count=${count} unit=${many}
        series=${[["in", "rows/s", "--blue"]]} />
      <${Chart} key=${`${query.key} lag`} title="Lag behind its sources" points=${points} count=${count} unit=${seconds}
        series=${[["lag", "lag", "--warm"]]} />
    </div>
    <${Zone} />
    <h3>Figures</h3><${Pairs} pairs=${query.head} query=${query.key} />
    ${query.sources.length > 0 && html`<h3>Sources</h3><${Table} caption="Sources" rows=${query.sources.map((one) => ({ key: one.stream, ...one }))} columns=${[
      ["stream", (one) => html`<span class="mono">${one.stream}</span>`],
      ...[["read up to LSN", "position"], ["tail of the log", "tail"], ["rows that wait", "rows"], ["lag", "lag"]].map(([name, field]) =>
        [name, (one) => html`<${Figure} of=${one[field]} query=${query.key} />`, "num"])]} />`}
    <h3>Tasks</h3><${Table} caption="Tasks" empty="No task has reported yet." rows=${query.tasks.map((one) => ({ ...one, mark: one.level === "bad" ? "stopped" : "" }))} columns=${[
      ["task", (one) => html`<${Level} level=${one.level}><span class="mono">${one.name}</span><//>${one.note && html` <small>${one.note}</small>`}${one.error && html` <small>${one.error}</small>`}`],
      ["worker", (one) => html`<${Figure} of=${one.worker} query=${query.key} />`, "mono"],
      ...figures(TASK, key).map(([name, cell, kind]) => [name, cell, name === "busy" ? "num heated" : kind])]} />
    <h3>Workers <small><${Figure} of=${query.wanted} query=${query.key} /> wanted</small></h3>
    <${Table} caption="Workers" empty="No worker is there." rows=${query.workers} columns=${[
      ["worker", (one) => html`<span class="mono">${one.name}</span>`],
      ...["slot", "host", "pid", "busy"].map((name) => [name, (one) => html`<${Figure} of=${one[name]} query=${query.key} />`, name === "host" ? "" : "num"]),
      ["runs", (one) => one.tasks.join(", ") || "nothing now", "mono"]]} />
    <h3>What moved</h3><${Table} caption="What moved" empty="No task has moved since the query was started." rows=${query.moves.map((one, key) => ({ key, ...one }))} columns=${
      ["task", "from", "to", "why", "at", "resumed"].map((name) => [name, (one) => html`<${Figure} of=${one[name]} query=${query.key} />`]).concat([["state", (one) => one.copy]])} /><//>`;
}

// Charts show the time of day where the reader is.
const Zone = () => html`<p class="key">Times of day are in your time zone, ${Intl.DateTimeFormat().resolvedOptions().timeZone || "which is not known"}.</p>`;

function LogPart({ log, points, count }) {
  return html`<${Section} id="log" title="The log" note=${log.target}>
    ${log.why && html`<p class="problem">Its figures are n/a: ${log.why}</p>`}
    <div class="charts">
      <${Chart} title="Entries per second" points=${points} count=${count} unit=${many} series=${[["entries", "entries/s", "--blue"]]} />
      <${Chart} title="Time of an fsync" points=${points} count=${count} unit=${ms} series=${[["p50", "p50", "--calm"], ["p99", "p99", "--hot"]]} />
    </div>
    <${Pairs} pairs=${log.head} />
    ${log.clients.length > 0 && html`<h3>Who is connected <small>as they call themselves: workers, gateways, deliveries, this page</small></h3>
      <${Table} caption="Who is connected" rows=${log.clients.map((one) => ({ key: one.name, ...one }))} columns=${[
        ["client", (one) => one.name, "mono"], ["connections", (one) => html`<${Figure} of=${one.connections} />`, "num"]]} />`}
    <h3>Segments <small>the newest first</small></h3>
    <${Table} caption="Segments" empty="n/a" rows=${log.segments.map((one, key) => ({ key, ...one }))} columns=${[
      ...["id", "from", "to", "size"].map((name) => [name, (one) => html`<${Figure} of=${one[name]} />`, "num"]),
      ["state", (one) => one.state], ["copies", (one) => one.copies]]} /><//>`;
}

function Cluster({ cluster }) {
  const part = (name, rows, more) => html`<h3>${name}</h3><${Table} caption=${name} empty="none" rows=${rows.map((one) => ({ key: one.id, ...one }))} columns=${[
    ["id", (one) => html`<span class="mono">${one.id}</span>`], ["state", (one) => html`<${Level} level=${one.level}>${one.state}<//>`],
    ...more, ["address", (one) => one.address, "mono"], ["region", (one) => one.region], ["problem", (one) => one.problem || ""]]} />`;
  return html`<${Section} id="cluster" title="The cluster">
    ${cluster.why && html`<p class="problem">${cluster.why}</p>`}
    ${part("Nodes", cluster.nodes, figures(["segments", "damaged blocks"]))}
    ${part("Proxies", cluster.proxies, [["role", (one) => one.role], ["owns", (one) => one.owns.join(", ") || "nothing"], ...figures(["connections", "readers", "readers behind"])])}
    <h3>Logs</h3><${Table} caption="Logs" empty="none" rows=${cluster.logs.map((one) => ({ key: one.name, ...one }))} columns=${[
      ["log", (one) => one.name], ["owner", (one) => one.owner, "mono"], ["missing nodes", (one) => one["missing nodes"]],
      ...["epoch", "tail", "size", "blocks lacking a copy"].map((name) => [name, (one) => html`<${Figure} of=${one[name]} />`, "num"])]} /><//>`;
}

function Deliveries({ deliveries }) {
  return html`<${Section} id="deliveries" title="Deliveries" note=${deliveries.length}>
    ${deliveries.map((one) => html`<article key=${one.key} class="delivery"><h3><${Level} level=${one.level}>${one.name}<//> <small>${one.state}, stream <${Figure} of=${one.stream} />, lag <${Figure} of=${one.lag} />, <${Figure} of=${one.rows} /> rows, last ack <${Figure} of=${one["last ack"]} /></small></h3>
      ${one.error && html`<p class="problem">${one.error}</p>`}
      <${Table} caption=${`Targets of ${one.name}`} empty="No target." rows=${one.targets.map((target, key) => ({ key, ...target }))} columns=${[
        ...["shard", "position", "rows"].map((name) => [name, (target) => html`<${Figure} of=${target[name]} />`, "num"]),
        ["target", (target) => html`<${Figure} of=${target.target} />`, "mono"], ["problem", (target) => target.problem || ""]]} /></article>`)}<//>`;
}

function App() {
  const [signed, setSigned] = useState(signedIn());
  const [why, setWhy] = useState(null);
  const [page, setPage] = useState(null);
  const [problem, setProblem] = useState(null);
  const [chosen, setChosen] = useState(chosenInAddress());
  const [down, setDown] = useState(narrow());
  const points = useRef({ log: new Points(), query: new Points(), of: null });
  const heard = useRef(0);
  const [now, setNow] = useState(0);

  function choose(query) {
    points.current.query = new Points();
    setChosen(query);
    history.replaceState(null, "", query === null ? "#" : `#query=${encodeURIComponent(query)}`);
  }
  useEffect(() => {
    const resized = () => setDown(narrow());
    const moved = () => setChosen(chosenInAddress());
    const tick = setInterval(() => setNow(Date.now()), 1000);
    window.addEventListener("resize", resized);
    window.addEventListener("hashchange", moved);
    return () => { clearInterval(tick); window.removeEventListener("resize", resized); window.removeEventListener("hashchange", moved); };
  }, []);
  useEffect(() => {
    if (!signed) return undefined;
    const path = chosen === null ? "/v1/events" : `/v1/events?query=${encodeURIComponent(chosen)}`;
    return follow(path, (name, data) => {
      if (name === "points") points.current[data.of === null ? "log" : "query"].take(data);
      else if (name === "page") { heard.current = Date.now(); setProblem(null); setPage(data); }
    }, (found) => {
      setProblem(found);
      if (found && found.status === 401) { signOut(); setPage(null); setSigned(false); setWhy(`${found.message}.`); }
    });
  }, [signed, chosen]);
  useEffect(() => {
    // Who has chosen nothing sees the query that needs a look, or the first.
    if (!page || chosen !== null || !page.queries.length) return;
    const wrong = page.health.problems.find((one) => one.query);
    choose(wrong ? wrong.query : (page.queries.find((one) => one.state === "running") || page.queries[0]).key);
  }, [page, chosen]);
  useEffect(() => {
    if (page) document.title = `${{ good: "", warn: "! ", bad: "!! ", down: "✕ " }[page.health.level]}Penstock`;
  }, [page && page.health.level]);

  if (!signed) return html`<${SignIn} problem=${why} done=${() => { setWhy(null); setSigned(true); }} />`;
  const late = now - heard.current > 3000 && heard.current;
  // What the server has of the log may be older than what the page has of the server.
  const old = Math.max(heard.current ? now - heard.current : 0, 0) + (page ? page.age_ms || 0 : 0);
  const lost = problem && html`<p class="lost" role="alert" id="lost"><${Level} level="down">no update<//> ${problem.message}. ${problem.remedy} Trying again every second.</p>`;
  if (!page) return html`<main class="sign-in">${lost || html`<p>Asking the log…</p>`}</main>`;
  const counts = [points.current.log.count, points.current.query.count];
  const places = [["queries", "Queries"], page.query && ["query", page.query.name], ["streams", "Streams"],
    page.deliveries.length && ["deliveries", "Deliveries"], ["log", "Log"], page.cluster && ["cluster", "Cluster"], ["explain", "Explain"]].filter(Boolean);
  return html`<header><a class="skip" href="#health">To the health line</a>
      <img src="/icon.svg" alt="" width="24" height="24" /><b>Penstock</b><span class="mono target">${page.log.target}</span>
      <span class="beat ${late || problem || page.away || page.age_ms > 3000 ? "late" : ""}" role="status">${page.away ? "log away" : late || problem || page.age_ms > 3000 ? `figures ${Math.round(old / 1000)} s old` : "live"}</span>
      <button type="button" class="link" onClick=${() => { signOut(); setPage(null); setSigned(false); }}>forget token</button></header>
    <nav aria-label="Parts of the page">${places.map(([id, name]) => html`<a key=${id} href="#${id}" onClick=${(event) => {
      event.preventDefault(); document.getElementById(id).scrollIntoView({ block: "start" }); }}>${name}</a>`)}</nav>
    <main>${lost}
      <${Health} health=${page.health} away=${page.away} choose=${choose} />
      <${Queries} queries=${page.queries} chosen=${chosen} choose=${choose} />
      ${page.query && html`<${Query} query=${page.query} points=${points.current.query} count=${counts[1]} may=${page.may_ask} down=${down} />`}
      ${!page.query && chosen !== null && html`<${Section} id="query" title="Query"><p class="empty">No query <code>${chosen}</code> is here, or this token may not look at it. Choose another above.</p><//>`}
      <${Streams} streams=${page.streams} choose=${choose} />
      ${page.deliveries.length > 0 && html`<${Deliveries} deliveries=${page.deliveries} />`}
      <${LogPart} log=${page.log} points=${points.current.log} count=${counts[0]} />
      ${page.cluster && html`<${Cluster} cluster=${page.cluster} />`}
      <${Explain} /></main>`;
}

async function begin() {
  const ticket = new URLSearchParams(location.hash.slice(1)).get("ticket");
  if (ticket) {
    history.replaceState(null, "", "#");
    try { await redeem(ticket); } catch { /* the page asks for the token */ }
  }
  render(html`<${App} />`, document.getElementById("app"));
}

begin();

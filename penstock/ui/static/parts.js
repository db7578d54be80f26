// Small parts that all others use. Every text goes through Preact as text, never as markup.
import { html } from "/vendor/preact.js";
export { html };

// A figure is [text, value, where it stands in the facts].
export function Figure({ of, query }) {
  if (!of) return html`<span class="na">n/a</span>`;
  const [text, value, where] = of;
  const unknown = value === null || value === undefined;
  return html`<data class=${unknown ? "na" : ""} value=${unknown ? "" : String(value)}
    data-fact=${where || undefined} data-query=${where ? query : undefined}>${text}</data>`;
}

export const Level = ({ level, children }) =>
  html`<span class="level ${level}"><i aria-hidden="true"></i>${children}</span>`;

// A sentence with commands in it, which stand between backticks.
export const Said = ({ text }) => text.split("`").map((part, index) => index % 2 ? html`<code>${part}</code>` : part);

export function Pairs({ pairs, query }) {
  return html`<dl class="pairs">${pairs.map(([name, figure]) => html`
    <div key=${name}><dt>${name}</dt><dd><${Figure} of=${figure} query=${query} /></dd></div>`)}</dl>`;
}

export function Section({ id, title, note, children }) {
  return html`<section id=${id} aria-labelledby="${id}-title">
    <h2 id="${id}-title">${title}${note && html` <small>${note}</small>`}</h2>${children}</section>`;
}

// A table of which each cell is a figure, or what `cell` makes of it.
export function Table({ caption, columns, rows, empty }) {
  if (!rows.length) return html`<p class="empty">${empty}</p>`;
  return html`<div class="wide" tabindex="0" role="region" aria-label=${caption}>
    <table><caption class="hidden">${caption}</caption>
    <thead><tr>${columns.map(([name, , kind]) =>
      html`<th key=${name} scope="col" class=${kind || ""}>${name}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${row.key} class=${row.mark || ""}>${columns.map(
      ([name, cell, kind]) => html`<td key=${name} class=${kind || ""}>${cell(row)}</td>`)}</tr>`)}
    </tbody></table></div>`;
}

// Columns of figures that a row has by name.
export const figures = (names, query) => names.map((name) =>
  [name, (row) => html`<${Figure} of=${row.figures[name]} query=${query ? query(row) : undefined} />`, "num"]);

export const narrow = () => window.matchMedia("(max-width: 700px)").matches;

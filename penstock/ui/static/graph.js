// A query's graph. Ranks and rows come from the server; here they become places: ranks go to the
// right, or on a narrow screen downwards.
import { html } from "/vendor/preact.js";
import { Figure } from "/parts.js";

const BOX = { width: 200, height: 84 };
const GAP = { along: 150, across: 34 };

function places(graph, down) {
  const tallest = {};
  for (const node of graph.nodes) tallest[node.rank] = Math.max(tallest[node.rank] || 0, node.row + 1);
  const most = Math.max(...Object.values(tallest));
  const step = { along: (down ? BOX.height : BOX.width) + (down ? 96 : GAP.along),
                 across: (down ? BOX.width + 70 : BOX.height) + GAP.across };
  const at = {};
  for (const node of graph.nodes) {
    const along = node.rank * step.along;
    const across = (node.row + (most - tallest[node.rank]) / 2) * step.across;
    at[node.id] = down ? { x: across, y: along } : { x: along, y: across };
  }
  const length = (graph.ranks - 1) * step.along + (down ? BOX.height : BOX.width);
  const breadth = most * step.across - GAP.across; // with room for the last labels
  return { at, width: down ? breadth : length, height: down ? length : breadth };
}

// Where many meet, what is said of each stands at its other end: else it would stand in one place.
function labelShare(edge, edges) {
  if (edges.filter((one) => one.to === edge.to).length > 1) return 0.12;
  return edges.filter((one) => one.from === edge.from).length > 1 ? 0.88 : 0.5;
}

function Edge({ edge, edges, at, down, query }) {
  const from = at[edge.from], to = at[edge.to];
  const [x1, y1] = down ? [from.x + BOX.width / 2, from.y + BOX.height] : [from.x + BOX.width, from.y + BOX.height / 2];
  const [x2, y2] = down ? [to.x + BOX.width / 2, to.y - 7] : [to.x - 7, to.y + BOX.height / 2];
  const bend = down ? (y2 - y1) / 2 : (x2 - x1) / 2;
  const path = down ? `M${x1},${y1} C${x1},${y1 + bend} ${x2},${y2 - bend} ${x2},${y2}`
                    : `M${x1},${y1} C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`;
  const share = labelShare(edge, edges);
  const x = down ? x1 + (x2 - x1) * share : (x1 + x2) / 2, y = down ? (y1 + y2) / 2 : y1 + (y2 - y1) * share;
  const box = down ? { x: x + 6, y: y - 36 } : { x: x - 74, y: y - 78 };
  return html`<g class="edge ${edge.is_late ? "late" : ""}">
    <path d=${path} marker-end="url(#arrow)" />
    <foreignObject x=${box.x} y=${box.y} width=${down ? 180 : 148} height="74">
      <div class="label ${down ? "down" : "over"}">
        <b><${Figure} of=${edge.rate} query=${query} /></b>
        ${edge.lag && html`<span>lag <${Figure} of=${edge.lag} query=${query} /></span><span><${Figure} of=${edge.rows} query=${query} /> rows wait</span>`}
        ${edge.watermark && html`<span>watermark <${Figure} of=${edge.watermark} query=${query} /></span>`}
      </div>
    </foreignObject></g>`;
}

function Node({ node, at, query }) {
  const { x, y } = at[node.id];
  const kinds = { source: "stream read", sink: "result" };
  return html`<foreignObject x=${x} y=${y} width=${BOX.width} height=${BOX.height}>
    <div class="node ${node.kind} ${node.heat}" title=${node.does.join("\n")}>
      <small>${kinds[node.kind] || `${node.tasks} ${node.tasks === 1 ? "task" : "tasks"}`}</small>
      <b>${node.name}</b>
      ${node.busy && html`<span class="busy">busy <${Figure} of=${node.busy} query=${query} />
        ${node.pressed && node.pressed[1] > 0.05 && html`, held up <${Figure} of=${node.pressed} query=${query} />`}</span>`}
      ${node.mainly && html`<em>${node.mainly}</em>`}
    </div></foreignObject>`;
}

export function Graph({ graph, query, down }) {
  if (!graph) return html`<p class="empty">Graph: n/a. The query has not told of it yet.</p>`;
  const { at, width, height } = places(graph, down);
  const pad = { x: 10, y: down ? 10 : 44 };
  const told = graph.nodes.map((node) => node.busy ? `${node.name}, busy ${node.busy[0]}` : node.name);
  return html`<div class="graph" tabindex="0" role="region" aria-label=${`Graph of ${query}: ${told.join("; ")}`}>
    <svg width=${width + 2 * pad.x} height=${height + 2 * pad.y} viewBox="${-pad.x} ${-pad.y} ${width + 2 * pad.x} ${height + 2 * pad.y}">
      <defs><marker id="arrow" viewBox="0 0 8 8" refX="2" refY="4" markerWidth="7" markerHeight="7" orient="auto">
        <path d="M0,0 L8,4 L0,8 z" /></marker></defs>
      ${graph.edges.map((edge) => html`<${Edge} key=${`${edge.from} ${edge.to}`} edge=${edge} edges=${graph.edges} at=${at} down=${down} query=${query} />`)}
      ${graph.nodes.map((node) => html`<${Node} key=${node.id} node=${node} at=${at} query=${query} />`)}
    </svg></div>
    <p class="key" aria-hidden="true">Boxes by their busiest task:
      <i class="calm"></i>below 60 % <i class="busy"></i>from 60 % <i class="hot"></i>from 90 % <i class="unknown"></i>n/a</p>`;
}

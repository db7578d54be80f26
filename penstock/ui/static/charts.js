// Charts over time; a value that was not known is a gap.
import { html, Component } from "/vendor/preact.js";
import uPlot from "/vendor/uplot.js";

const MAX = 600;
const clock = (at) => at == null ? "" : new Date(at * 1000).toLocaleTimeString("en-GB");
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Points of one chart, column by column, as they come.
export class Points {
  constructor() { this.columns = null; this.count = 0; }
  take({ reset, columns }) {
    if (reset || !this.columns) this.columns = columns;
    else for (const name in columns) {
      this.columns[name] = this.columns[name].concat(columns[name]).slice(-MAX);
    }
    this.count += 1;
  }
  data(names) {
    return ["at", ...names].map((name) => (this.columns && this.columns[name]) || []);
  }
}

export class Chart extends Component {
  constructor() { super(); this.place = { current: null }; }
  options() {
    const { series, unit } = this.props;
    const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    return {
      width: Math.max(this.place.current.clientWidth, 120), height: 170,
      legend: { live: true }, cursor: { y: false, points: { size: 6 } },
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.15 : 1] } },
      axes: [{ ...axis, space: 80, values: (plot, marks) => marks.map(plot.data[0].length > 1 ? clock : () => "") }, { ...axis, size: 62, values: (_, marks) => marks.map(unit) }],
      series: [{ label: "at", value: (plot, at) => clock(at ?? plot.data[0].at(-1)) },
        ...series.map(([, label, colour]) => ({ label, stroke: css(colour), width: 1.6, spanGaps: false,
          points: { show: (plot) => plot.data[0].length < 2, size: 5 }, value: (plot, value, of, index) => {
            const told = index == null ? plot.data[of].at(-1) : value;
            return told == null ? "n/a" : unit(told);
          } }))],
    };
  }
  draw() {
    if (this.plot) this.plot.destroy();
    this.plot = new uPlot(this.options(), this.props.points.data(this.props.series.map((one) => one[0])), this.place.current);
  }
  componentDidMount() {
    this.draw();
    this.sizes = new ResizeObserver(() => {
      const width = this.place.current && this.place.current.clientWidth;
      if (width && width !== this.plot.width) this.plot.setSize({ width, height: 170 });
    });
    this.sizes.observe(this.place.current);
    this.theme = window.matchMedia("(prefers-color-scheme: dark)");
    this.themed = () => this.draw();
    this.theme.addEventListener("change", this.themed);
  }
  shouldComponentUpdate({ points, count }) {
    if (points !== this.props.points || count !== this.props.count) {
      this.plot.setData(points.data(this.props.series.map((one) => one[0])));
    }
    return false;
  }
  componentWillUnmount() {
    this.sizes.disconnect();
    this.theme.removeEventListener("change", this.themed);
    this.plot.destroy();
  }
  render({ title }) {
    return html`<figure class="chart"><figcaption>${title}</figcaption><div ref=${this.place}></div></figure>`;
  }
}

export const ms = (value) => value >= 10000 ? `${Math.round(value / 1000)} s` : value >= 1000 ? `${(value / 1000).toFixed(1)} s`
  : `${value >= 100 || value === 0 ? Math.round(value) : +value.toFixed(1)} ms`;
export const seconds = (value) => ms(value * 1000);
export const many = (value) => value >= 1e6 ? `${+(value / 1e6).toFixed(1)} M` : value >= 1e4 ? `${+(value / 1e3).toFixed(1)} k` : `${+value.toFixed(1)}`;

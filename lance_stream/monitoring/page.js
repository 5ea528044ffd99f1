"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { displayModeBar: false, responsive: true, displaylogo: false };
  let axis = "version";

  function styled(trace, css) {
    const color = css("--" + trace.color);
    const plot = { ...trace, marker: { ...trace.marker, color } };
    if (trace.type === "scatter") {
      plot.line = { color, width: 1.8, shape: trace.step ? "hv" : "linear" };
      if (trace.mode.includes("lines")) plot.marker.size = 4;
      if (trace.fill) plot.fillcolor = color + "22";
    }
    if (trace.type === "bar") plot.marker.line = { width: 0 };
    for (const name of ["color", "step", "at"]) delete plot[name];
    return plot;
  }

  function withAxis(trace, plot) {
    const values = axis === "time" ? data.times : data.versions;
    plot.x = trace.at ? trace.at.map((index) => values[index]) : values;
    if (axis === "time" && trace.type === "bar") {
      // At uneven times, bars have no common width.
      Object.assign(plot, { type: "scatter", mode: "markers" });
      plot.y = plot.y.map((value) => value || null);
      plot.marker.size = 5;
    }
    return plot;
  }

  function layoutOf(figure, css) {
    const soft = css("--soft"), grid = css("--grid");
    const lines = { gridcolor: grid, linecolor: grid, zerolinecolor: css("--line"), automargin: true };
    const figureLayout = figure.layout;
    const layout = {
      hovermode: "x unified",
      ...figureLayout,
      height: figure.height,
      margin: { l: 48, r: 24, t: 8, b: 36 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: soft, size: 12, family: getComputedStyle(document.body).fontFamily },
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--text") }, align: "left" },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
      xaxis: { ...lines, ...figureLayout.xaxis },
      yaxis: { ...lines, ...figureLayout.yaxis },
    };
    if (figure.isOverVersions) {
      const [first, last] = [data.versions[0], data.versions[data.versions.length - 1]];
      const padding = Math.max(0.6, (last - first) / 100);
      layout.xaxis = axis === "time"
        ? { ...layout.xaxis, type: "date" }
        : { ...layout.xaxis, type: "linear", tickformat: ",d", range: [first - padding, last + padding],
            hoverformat: ",d", dtick: last - first < 12 ? 1 : undefined };
      if (layout.hovermode === "x unified" && axis === "version") {
        layout.xaxis.unifiedhovertitle = { text: "version %{x}" };
      }
    }
    return layout;
  }

  function draw() {
    const style = getComputedStyle(document.documentElement);
    const css = (name) => style.getPropertyValue(name).trim();
    for (const figure of data.figures) {
      const traces = figure.traces.map((trace) => {
        const plot = styled(trace, css);
        return figure.isOverVersions ? withAxis(trace, plot) : plot;
      });
      Plotly.react("figure-" + figure.key, traces, layoutOf(figure, css), config);
    }
  }

  document.getElementById("axis").addEventListener("change", (event) => {
    axis = event.target.value;
    draw();
  });
  if (!data.times.some((time) => time !== null)) document.getElementById("axis").hidden = true;
  dark.addEventListener("change", draw);
  draw();
})();

"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { displayModeBar: false, responsive: true, displaylogo: false };
  let axis = "version";

  function styled(trace, css) {
    const color = css("--" + trace.color);
    const made = { ...trace, marker: { ...trace.marker, color } };
    if (trace.type === "scatter") {
      made.line = { color, width: 1.8, shape: trace.step ? "hv" : "linear" };
      if (trace.mode.includes("lines")) made.marker.size = 4;
      if (trace.fill) made.fillcolor = color + "22";
    }
    if (trace.type === "bar") made.marker.line = { width: 0 };
    for (const name of ["color", "step", "at"]) delete made[name];
    return made;
  }

  function placed(trace, made) {
    const all = axis === "time" ? data.times : data.versions;
    made.x = trace.at ? trace.at.map((at) => all[at]) : all;
    if (axis === "time" && trace.type === "bar") {
      // bars have no width between uneven moments
      Object.assign(made, { type: "scatter", mode: "markers" });
      made.y = made.y.map((each) => each || null);
      made.marker.size = 5;
    }
    return made;
  }

  function layoutOf(figure, css) {
    const soft = css("--soft"), grid = css("--grid");
    const lines = { gridcolor: grid, linecolor: grid, zerolinecolor: css("--line"), automargin: true };
    const own = figure.layout;
    const layout = {
      hovermode: "x unified",
      ...own,
      height: figure.height,
      margin: { l: 48, r: 24, t: 8, b: 36 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: soft, size: 12, family: getComputedStyle(document.body).fontFamily },
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--text") }, align: "left" },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
      xaxis: { ...lines, ...own.xaxis },
      yaxis: { ...lines, ...own.yaxis },
    };
    if (figure.isOverVersions) {
      const [first, last] = [data.versions[0], data.versions[data.versions.length - 1]];
      const beside = Math.max(0.6, (last - first) / 100);
      layout.xaxis = axis === "time"
        ? { ...layout.xaxis, type: "date" }
        : { ...layout.xaxis, type: "linear", tickformat: ",d", range: [first - beside, last + beside],
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
        const made = styled(trace, css);
        return figure.isOverVersions ? placed(trace, made) : made;
      });
      Plotly.react("figure-" + figure.key, traces, layoutOf(figure, css), config);
    }
  }

  document.getElementById("axis").addEventListener("change", (event) => {
    axis = event.target.value;
    draw();
  });
  if (!data.times.some((each) => each !== null)) document.getElementById("axis").hidden = true;
  dark.addEventListener("change", draw);
  draw();
})();

"use strict";
// Figures are complete pictures without this script. It lets a reader point at their values, with
// a mouse, a finger or the arrow keys, and hide their series.

// Figure -> the series that the reader has hidden, so that they stay hidden when a live page renews
// the figure.
const hiddenSeries = new Map();
const NEAR = 30; // how far a pointer may be from a value, in units of the picture
const MARGIN = 15; // below the lowest part of a picture, in units of the picture
const SVG = "http://www.w3.org/2000/svg";
// Marker by its name in matplotlib -> its shape, in a picture from -6 to 6.
const SHAPES = {
  o: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
  s: "M-3.5-3.5h7v7h-7z",
  "^": "M0-4.5L4.5 3.5H-4.5z",
  D: "M0-5L5 0L0 5L-5 0z",
  v: "M0 4.5L4.5-3.5H-4.5z",
  P: "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
  X: "M-4.5-2.4L-2.4-4.5L0-2.1L2.4-4.5L4.5-2.4L2.1 0L4.5 2.4L2.4 4.5L0 2.1L-2.4 4.5L-4.5 2.4L-2.1 0z",
  "*": "M0.0 -5.5L1.3 -1.8L5.2 -1.7L2.1 0.7L3.2 4.4L0.0 2.2L-3.2 4.4L-2.1 0.7L-5.2 -1.7L-1.3 -1.8z",
};

function enhanceChart(chart) {
  const figure = chart.closest("figure");
  const names = JSON.parse(chart.dataset.names ?? "[]");
  const spots = JSON.parse(chart.dataset.spots ?? "[]");
  const hidden = hiddenSeries.get(figure.id) ?? new Set();
  hiddenSeries.set(figure.id, hidden);
  const isVisible = ([, , series]) => series < 0 || !hidden.has(names[series][0]);
  if (names.length > 1) addLegend(chart, names, hidden);
  if (spots.length) addValues(chart, spots, isVisible);
}

function addLegend(chart, names, hidden) {
  const legend = document.createElement("div");
  legend.className = "legend";
  legend.setAttribute("role", "group");
  legend.setAttribute("aria-label", "Show or hide series");
  names.forEach(([name, colour, marker], number) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(swatch(colour, marker), name);
    const show = () => {
      button.setAttribute("aria-pressed", String(!hidden.has(name)));
      for (const part of chart.querySelectorAll(`[data-series="${number}"]`)) {
        part.classList.toggle("hidden", hidden.has(name));
      }
    };
    button.addEventListener("click", () => {
      if (!hidden.delete(name)) hidden.add(name);
      show();
    });
    show();
    legend.append(button);
  });
  cutStaticLegend(chart);
  chart.classList.add("has-legend");
  chart.parentElement.after(legend);
}

function swatch(colour, marker) {
  const picture = document.createElementNS(SVG, "svg");
  const shape = document.createElementNS(SVG, "path");
  picture.setAttribute("viewBox", "-6 -6 12 12");
  picture.setAttribute("aria-hidden", "true");
  shape.setAttribute("d", SHAPES[marker] ?? SHAPES.o);
  shape.style.fill = colour;
  picture.append(shape);
  return picture;
}

// The buttons replace the legend inside the picture. Its space is cut if it is at the lower end, and
// not inside one of several panels.
function cutStaticLegend(chart) {
  const box = chart.querySelector(".static-legend")?.getBBox();
  if (!box?.height) return;
  if (box.y + box.height < chart.viewBox.baseVal.height - MARGIN) return;
  chart.dataset.whole = chart.viewBox.baseVal.height;
  chart.dataset.cut = box.y;
  chart.viewBox.baseVal.height = box.y;
}

// Paper has no buttons, and so shows the whole picture.
for (const [event, key] of [["beforeprint", "whole"], ["afterprint", "cut"]]) {
  addEventListener(event, () => {
    for (const chart of document.querySelectorAll(".chart[data-cut]")) {
      chart.viewBox.baseVal.height = chart.dataset[key];
    }
  });
}

function addValues(chart, spots, isVisible) {
  const canvas = chart.parentElement;
  const tip = document.createElement("output");
  const mark = document.createElementNS(SVG, "circle");
  let current = -1;
  tip.className = "tip";
  tip.hidden = true;
  mark.setAttribute("class", "mark hidden");
  mark.setAttribute("r", "4");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "group");
  canvas.setAttribute("aria-label", "Values of the figure; the arrow keys move between them");
  chart.append(mark);
  canvas.append(tip);

  const scale = () => chart.clientWidth / chart.viewBox.baseVal.width;
  const hide = () => {
    current = -1;
    tip.hidden = true;
    mark.classList.add("hidden");
  };
  const show = (number) => {
    const [x, y, , text] = spots[number];
    current = number;
    mark.setAttribute("cx", x);
    mark.setAttribute("cy", y);
    mark.classList.remove("hidden");
    tip.textContent = text;
    tip.hidden = false;
    // The text stays inside the picture, above the value or, at the top, below it.
    const left = chart.offsetLeft + x * scale() - tip.offsetWidth / 2;
    const above = chart.offsetTop + y * scale() - tip.offsetHeight - 10;
    tip.style.left = `${Math.max(0, Math.min(left, canvas.clientWidth - tip.offsetWidth))}px`;
    tip.style.top = `${above < 0 ? above + tip.offsetHeight + 20 : above}px`;
  };
  const nearest = (event) => {
    const box = chart.getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left) / scale(), (event.clientY - box.top) / scale()];
    let best = -1;
    let least = NEAR;
    spots.forEach((spot, number) => {
      const distance = Math.hypot(spot[0] - x, spot[1] - y);
      if (distance < least && isVisible(spot)) [best, least] = [number, distance];
    });
    return best;
  };
  const point = (event) => {
    const number = nearest(event);
    if (number < 0) hide();
    else if (number !== current) show(number);
  };
  const step = (direction) => {
    for (let number = current + direction; number in spots; number += direction) {
      if (isVisible(spots[number])) return show(number);
    }
  };
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("pointerleave", hide);
  canvas.addEventListener("blur", hide);
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hide();
    const direction = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!direction) return;
    event.preventDefault();
    step(direction);
  });
}

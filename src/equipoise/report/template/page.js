"use strict";
// Without this script a page shows everything. With it tables can be searched, sorted and unfolded.

// Table -> what the reader searched and how it is sorted, so that a live page keeps both.
const sheetStates = new Map();
const FEW_ROWS = 8; // a table of so many rows needs no search
const PHONE = 600; // pixels
const SHOWN_ON_PHONE = 12; // rows

function sortKey(cell) {
  const text = cell.dataset.value ?? cell.textContent.trim();
  const number = Number.parseFloat(text.replace(/,(?=\d{3})/g, ""));
  const isNumber = cell.tagName === "TD" && /^[-+−]?[\d.]/.test(text) && !Number.isNaN(number);
  if (text === "" || text === "–") return null;
  return isNumber ? number : text;
}

function compareKeys(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", { numeric: true });
}

function sortRows(body, { column, down }) {
  const rows = [...body.rows].map((row) => ({ row, key: sortKey(row.cells[column]) }));
  rows.sort((a, b) => {
    if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
    const order = compareKeys(a.key, b.key);
    return down ? -order : order;
  });
  body.append(...rows.map(({ row }) => row));
}

function enhanceSheet(sheet) {
  const table = sheet.querySelector("table");
  const [search, losers] = [sheet.querySelector(".search"), sheet.querySelector(".losers")];
  const [count, button] = [sheet.querySelector(".count"), sheet.querySelector(".all")];
  const noun = sheet.dataset.noun;
  const limit = innerWidth < PHONE ? SHOWN_ON_PHONE : Number(sheet.dataset.shown);
  const state = sheetStates.get(sheet.dataset.name) ?? { word: "", losers: false, all: false };
  sheetStates.set(sheet.dataset.name, state);

  const matches = (row) => {
    const name = row.cells[0].textContent.toLowerCase();
    return name.includes(state.word) && (!state.losers || row.classList.contains("loses"));
  };
  const update = () => {
    const rows = [...table.tBodies[0].rows];
    const matching = rows.filter(matches);
    const visible = new Set(state.all ? matching : matching.slice(0, limit));
    for (const row of rows) row.classList.toggle("hidden", !visible.has(row));
    const total = rows.length.toLocaleString("en");
    button.textContent = `Show all ${total} ${noun}`;
    button.hidden = state.all || matching.length <= limit;
    count.textContent = `${visible.size.toLocaleString("en")} of ${total} ${noun} shown`;
  };
  const order = () => {
    if (!state.sorted) return;
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const direction = state.sorted.down ? "descending" : "ascending";
      if (column === state.sorted.column) head.setAttribute("aria-sort", direction);
      else head.removeAttribute("aria-sort");
    });
    sortRows(table.tBodies[0], state.sorted);
  };
  const renew = () => {
    order();
    update();
  };

  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const sorter = document.createElement("button");
    sorter.type = "button";
    sorter.textContent = head.textContent;
    head.replaceChildren(sorter);
    sorter.addEventListener("click", () => {
      state.sorted = { column, down: head.getAttribute("aria-sort") === "ascending" };
      renew();
    });
  });
  search.value = state.word;
  search.addEventListener("input", () => {
    state.word = search.value.trim().toLowerCase();
    update();
  });
  losers?.addEventListener("input", () => {
    state.losers = losers.checked;
    update();
  });
  button.addEventListener("click", () => {
    state.all = true;
    update();
  });
  const isShort = table.tBodies[0].rows.length <= FEW_ROWS;
  sheet.querySelector(".controls").hidden = isShort && !table.classList.contains("cards");
  sheet.addEventListener("renewed", renew);
  renew();
}

// A phone shows no scroll bar, so that a table that scrolls says so until its end is reached.
function enhanceFrame(frame) {
  const cue = frame.previousElementSibling;
  const look = () => {
    cue.hidden = frame.scrollLeft + frame.clientWidth >= frame.scrollWidth - 2;
  };
  frame.addEventListener("scroll", look, { passive: true });
  new ResizeObserver(look).observe(frame);
}

function enhance(root) {
  root.querySelectorAll(".chart").forEach(enhanceChart);
  root.querySelectorAll(".sheet").forEach(enhanceSheet);
  root.querySelectorAll(".wide").forEach(enhanceFrame);
  document.dispatchEvent(new CustomEvent("enhance", { detail: root }));
}

enhance(document);
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});

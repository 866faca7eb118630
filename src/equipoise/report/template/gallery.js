"use strict";
// The gallery is complete without this script. With it runs can be searched, filtered and sorted,
// and the curves of selected runs appear above the cards.
const galleryState = { word: "", status: "", order: "newest", selected: new Set() };
// The average of a run, or something else for a run without one, which comes last in both orders.
const scoreOf = (card, missing) =>
  card.dataset.score === "-inf" ? missing : Number(card.dataset.score);
const ORDERS = {
  newest: (a, b) => b.dataset.started.localeCompare(a.dataset.started),
  oldest: (a, b) => a.dataset.started.localeCompare(b.dataset.started),
  best: (a, b) => scoreOf(b, -Infinity) - scoreOf(a, -Infinity) || 0,
  worst: (a, b) => scoreOf(a, Infinity) - scoreOf(b, Infinity) || 0,
  name: (a, b) => a.dataset.name.localeCompare(b.dataset.name, "en", { numeric: true }),
};

function filterGallery(list) {
  const cards = [...list.children];
  const count = document.getElementById("gallery-count");
  let shown = 0;
  for (const card of cards) {
    const matches =
      card.dataset.text.includes(galleryState.word) &&
      (!galleryState.status || card.classList.contains(galleryState.status));
    card.classList.toggle("hidden", !matches);
    if (matches) shown += 1;
  }
  list.append(...cards.sort(ORDERS[galleryState.order]));
  count.textContent = `${shown} of ${cards.length} shown`;
}

const selection = () => [...galleryState.selected].map((run) => `run=${run}`).join("&");

async function showOverlay() {
  const overlay = document.getElementById("overlay");
  const query = selection();
  overlay.hidden = !query;
  if (!query) return overlay.replaceChildren();
  const answer = await fetch(`overlay?${query}`, { cache: "no-cache" });
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (query !== selection()) return; // another run was selected meanwhile
  const content = document.importNode(page.querySelector("main"), true);
  overlay.replaceChildren(...content.children);
  enhance(overlay);
}

function enhanceGallery(list) {
  for (const box of list.querySelectorAll("input[name=run]")) {
    box.checked = galleryState.selected.has(box.value);
    box.addEventListener("input", () => {
      if (box.checked) galleryState.selected.add(box.value);
      else galleryState.selected.delete(box.value);
      showOverlay();
    });
  }
  filterGallery(list);
}

function enhanceGalleryControls(controls) {
  const list = () => document.querySelector(".gallery");
  const follow = (id, key, read) => {
    document.getElementById(id).addEventListener("input", (event) => {
      galleryState[key] = read(event.target.value);
      filterGallery(list());
    });
  };
  controls.hidden = false;
  document.getElementById("compare-button").hidden = true;
  follow("gallery-search", "word", (text) => text.trim().toLowerCase());
  follow("gallery-status", "status", (text) => text);
  follow("gallery-order", "order", (text) => text);
}

document.addEventListener("enhance", ({ detail: root }) => {
  root.querySelectorAll(".gallery-controls").forEach(enhanceGalleryControls);
  const lists = root.matches?.(".gallery") ? [root] : root.querySelectorAll(".gallery");
  lists.forEach(enhanceGallery);
});

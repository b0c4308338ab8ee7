// Making one piece of a page look like another, in place: what is alike stays, with its focus, its typed text and its open details.

export function morph(from, html) {
  const to = document.createElement("div");
  to.innerHTML = html; // of our own server, escaped there; what it holds of scripts would not run, and the policy forbids them
  morphChildren(from, to);
}

function morphChildren(from, to) {
  const keyed = new Map();
  for (const child of from.children) {
    if (child.id || child.dataset.key) keyed.set(child.id || child.dataset.key, child);
  }
  let place = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    const key = wanted.nodeType === 1 && (wanted.id || wanted.dataset.key);
    const known = key ? keyed.get(key) : null;
    if (known && known !== place) {
      from.insertBefore(known, place);
      place = known;
    }
    if (place && isAlike(place, wanted) && (known || !keyOf(place))) {
      const next = place.nextSibling;
      morphNode(place, wanted);
      place = next;
    } else {
      from.insertBefore(wanted, place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

const keyOf = (node) => (node.nodeType === 1 ? node.id || node.dataset.key : null);

const isAlike = (one, other) => one.nodeType === other.nodeType && one.nodeName === other.nodeName && keyOf(one) === keyOf(other);

function morphNode(from, to) {
  if (from.nodeType !== 1) {
    if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
    return;
  }
  if (from.isEqualNode(to)) return;
  const typed = from.matches("input, textarea, select");
  for (const { name, value } of [...to.attributes]) {
    if (from.getAttribute(name) !== value && !(typed && (name === "value" || name === "checked"))) from.setAttribute(name, value);
  }
  for (const { name } of [...from.attributes]) {
    // whoever opened it has not closed it yet
    if (!to.hasAttribute(name) && !(name === "open" && from.matches("details, dialog"))) from.removeAttribute(name);
  }
  // what is typed stays as it is, unless nobody could have: hidden fields are the server's
  if (typed && from.type === "hidden" && from.value !== to.value) from.value = to.value;
  if (!typed) morphChildren(from, to);
}

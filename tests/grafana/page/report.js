// Writes what is on the page into the page, for a test to read: each panel's box and its words.

const drawn = new WeakMap();

/** Keep the words that a canvas is given: axis labels are not in the document. */
function listenToCanvases() {
  const prototype = CanvasRenderingContext2D.prototype;
  const { fillText, clearRect } = prototype;
  prototype.clearRect = function clear(...box) {
    drawn.set(this.canvas, []);
    return clearRect.apply(this, box);
  };
  prototype.fillText = function fill(text, ...place) {
    drawn.set(this.canvas, [...(drawn.get(this.canvas) ?? []), text]);
    return fillText.call(this, text, ...place);
  };
}

function look() {
  const panels = [...document.querySelectorAll('section[data-testid*="Panel header"]')];
  return panels.map((panel) => {
    const { x, y, width, height } = panel.getBoundingClientRect();
    return {
      title: panel.dataset.testid.replace(/^.*Panel header /, ''),
      box: { x, y, width, height },
      text: panel.innerText,
      axes: [...panel.querySelectorAll('canvas')].flatMap((canvas) => drawn.get(canvas) ?? []),
      error: Boolean(panel.querySelector('[data-testid*="Panel status error"]')),
    };
  });
}

export function report(errors) {
  listenToCanvases();
  window.addEventListener('error', (event) => errors.push(event.message));
  window.addEventListener('unhandledrejection', (event) => errors.push(String(event.reason)));
  const place = document.createElement('script');
  place.type = 'application/json';
  place.id = 'report';
  document.body.append(place);
  setInterval(() => {
    const failed = document.body.dataset.failed;
    place.textContent = JSON.stringify({
      panels: look(),
      errors: failed ? [...errors, failed] : errors,
      height: document.documentElement.scrollHeight,
    }).replaceAll('<', '\\u003c');
  }, 500);
}

(() => {
  const all = document.querySelectorAll(
    'a[href], button, input:not([type="hidden"]), summary, [tabindex="0"]',
  );
  // One stop for a group of radio buttons: the chosen one.
  const reached = (one) => one.checkVisibility() && (one.type !== "radio" || one.checked);
  window.stops = [...all].filter(reached);
  return window.stops.length;
})()

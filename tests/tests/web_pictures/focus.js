(() => {
  const one = document.activeElement;
  const style = getComputedStyle(one);
  const box = one.getBoundingClientRect();
  const isInside = box.width > 0 && box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
  const isOutlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  const name = one.labels?.length ? one.labels[0].innerText : (one.ariaLabel ?? one.innerText);
  return {
    stop: window.stops.indexOf(one),
    visible: isInside && isOutlined && one.matches(":focus-visible"),
    name: name.trim(),
    box: [box.left, box.top, box.right, box.bottom],
  };
})()

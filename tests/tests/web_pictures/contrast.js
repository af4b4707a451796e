(() => {
  const colour = (text) => {
    const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
    return { r, g, b, a };
  };
  const linear = (part) => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  };
  const luminance = ({ r, g, b }) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const back = colour(getComputedStyle(at).backgroundColor);
      if (back.a === 1) return luminance(back);
      if (back.a !== 0) throw new Error(`half transparent: ${at.outerHTML}`);
    }
    return 1;
  };
  const faint = [];
  let texts = 0;
  const judge = (element, text) => {
    if (!text.trim() || !element.checkVisibility({ visibilityProperty: true })) return;
    texts += 1;
    const pair = [luminance(colour(getComputedStyle(element).color)), behind(element)];
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (ratio < 4.5) faint.push(`${text.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) judge(walker.currentNode.parentElement, walker.currentNode.data);
  for (const input of document.querySelectorAll("input")) judge(input, input.value);
  return { texts, faint, back: behind(document.body) };
})()

/* Before anything is drawn: the theme that was chosen, so that no page flashes in the other. */
(() => {
  try {
    const theme = localStorage.getItem("dovetail-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    /* Storage can be switched off; then the system decides. */
  }
})();

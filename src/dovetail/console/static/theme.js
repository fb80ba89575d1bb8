/* Before anything is drawn: the theme that was chosen here, so that no page flashes in the other one. */
(() => {
  try {
    const theme = localStorage.getItem("dovetail-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    /* Storage can be switched off; then the system decides. */
  }
})();

// Gives the API viewer the light or dark colors of the page before the viewer is first shown.

const COLORS = {
  light: { theme: "light", "bg-color": "#fffefa", "text-color": "#1e2a21", "nav-bg-color": "#ebeadd", "nav-text-color": "#3d493a", "primary-color": "#2b6640" },
  dark: { theme: "dark", "bg-color": "#121813", "text-color": "#e9eee2", "nav-bg-color": "#0d120e", "nav-text-color": "#a9b6a3", "primary-color": "#93cd9c" },
};

const viewer = document.querySelector("rapi-doc");
const prefersDark = matchMedia("(prefers-color-scheme: dark)");

function applyColors() {
  for (const [name, value] of Object.entries(COLORS[prefersDark.matches ? "dark" : "light"])) viewer.setAttribute(name, value);
}

// The viewer takes the address of the service in the document, which is relative, for one of the host's root.
for (const name of ["server-url", "default-api-server"]) viewer.setAttribute(name, new URL("..", import.meta.url).href);
prefersDark.addEventListener("change", applyColors);
applyColors();

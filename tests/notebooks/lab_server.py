"""A JupyterLab server of its own for a test, and a page of it in a headless Chromium.

Nothing is shared with the machine's own Jupyter: the server has its own folders and token, and what
it starts is ended with it. Waits are on conditions. The page is asked through JupyterLab's own
objects (`expose_app_in_browser`) when a cell has run and what it gave; controls are moved through
the DOM, as a reader moves them.
"""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from pedagogy.cli.chapters import kernel_environment

START_SECONDS = 120
RUN_SECONDS = 300

SETTINGS = {
    # Cells outside the window would otherwise be missing from the page.
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension/notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
}


def chromium() -> str | None:
    """The path of a Chromium on this machine, if there is one."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


@contextmanager
def lab_server(folder: Path, private: Path) -> Iterator[str]:
    """The address (with token) of a JupyterLab that serves `folder` and writes into `private`."""
    for name, settings in SETTINGS.items():
        file = private / "settings" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings))
    token = secrets.token_hex(16)
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
        "--expose-app-in-browser",
        f"--ServerApp.root_dir={folder}",
        f"--ServerApp.port={_free_port()}",
        f"--IdentityProvider.token={token}",
        f"--LabApp.user_settings_dir={private / 'settings'}",
        f"--LabApp.workspaces_dir={private / 'workspaces'}",
    ]
    environment = kernel_environment() | {
        "JUPYTER_CONFIG_DIR": str(private / "config"),
        "JUPYTER_RUNTIME_DIR": str(private / "runtime"),
        "JUPYTER_DATA_DIR": str(private / "data"),
        "IPYTHONDIR": str(private / "ipython"),
    }
    with (private / "server.log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield f"{_address(server, private)}lab/tree/{{name}}?reset&token={token}"
    finally:
        _end(server)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _address(server: subprocess.Popen, private: Path) -> str:
    """Where the server listens (it says so in a file; it may have had to take another port)."""
    file = private / "runtime" / f"jpserver-{server.pid}.json"
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        if file.exists() and file.read_text().strip():
            return json.loads(file.read_text())["url"]
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start:\n{(private / 'server.log').read_text()}")


def _end(server: subprocess.Popen) -> None:
    """The server and everything that it started, kernels and their ranks, have ended."""
    try:
        family = psutil.Process(server.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    server.terminate()
    try:
        server.wait(20)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    _, alive = psutil.wait_procs(family, timeout=5)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=5)


class LabPage:
    """One notebook, open in JupyterLab, with a running kernel."""

    def __init__(self, context):
        self.page = context.new_page()

    def open(self, address: str, name: str) -> None:
        """The notebook is on the page and its kernel is idle."""
        self.page.goto(address.format(name=name), timeout=START_SECONDS * 1000)
        self.page.wait_for_function(
            """name => {
                const panel = window.jupyterapp?.shell.currentWidget;
                return panel?.context?.path === name && panel.context.isReady
                    && panel.sessionContext?.session?.kernel?.status === 'idle';
            }""",
            arg=name,
            timeout=START_SECONDS * 1000,
        )

    def run_all(self) -> None:
        """Every cell has run, the kernel is idle, and every widget stands on the page."""
        self.page.set_default_timeout(RUN_SECONDS * 1000)
        self.page.evaluate(
            """() => { window.ranAll = false;
                window.jupyterapp.commands.execute('notebook:run-all-cells')
                    .then(() => { window.ranAll = true; }); }"""
        )
        self.page.wait_for_function(
            """() => window.ranAll && window.jupyterapp.shell.currentWidget
                .sessionContext.session.kernel.status === 'idle'"""
        )
        self.page.wait_for_function(
            """view => {
                const outputs = window.jupyterapp.shell.currentWidget.content.widgets
                    .flatMap(cell => cell.model.toJSON().outputs ?? []);
                const shown = [...document.querySelectorAll('.jp-OutputArea-output')]
                    .filter(output => output.querySelector('.jupyter-widgets'));
                return shown.length >= outputs.filter(out => out.data?.[view]).length;
            }""",
            arg="application/vnd.jupyter.widget-view+json",
        )

    def cells_not_run(self) -> list[str]:
        """The code cells that have no execution count, by their first line."""
        return self.page.evaluate(
            """() => window.jupyterapp.shell.currentWidget.content.widgets
                .map(cell => cell.model.toJSON())
                .filter(cell => cell.cell_type === 'code' && !cell.execution_count)
                .map(cell => [].concat(cell.source).join('').split('\\n')[0])"""
        )

    def problems(self) -> list[str]:
        """Errors and stderr in outputs, widgets without a view, and errors that a view shows."""
        outputs = self.page.evaluate(
            """() => window.jupyterapp.shell.currentWidget.content.widgets
                .flatMap(cell => cell.model.toJSON().outputs ?? [])
                .filter(out => out.output_type === 'error' || out.name === 'stderr')
                .map(out => out.evalue ?? [].concat(out.text).join(''))"""
        )
        widgets = self.page.locator(
            ".jupyter-widgets-error-widget, .jp-OutputArea-output .widget-box [role=alert]"
        )
        return outputs + widgets.all_inner_texts()

    def end_kernel(self) -> None:
        """The notebook's kernel is shut down and its page closed."""
        self.page.evaluate(
            "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.shutdown()"
        )
        self.page.close()

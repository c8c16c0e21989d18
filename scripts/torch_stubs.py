"""Build stubs of the CUDA libraries that torch's wheel needs: `torch_stubs.py ENVIRONMENT`.

Each missing library is replaced by a stub that defines all required functions; every function returns "no device". So
torch works on a machine without a GPU and without 2.5 GB of libraries. The stubs are written to torch's own library
directory, which the loader searches first.
"""

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

#: cudaErrorNoDevice. Functions must return, because some are called when the libraries are loaded.
NO_DEVICE = 100
#: Libraries of the C library and the compiler, which are always installed.
SYSTEM = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|gomp.*|util|numa|z))\.so")


def read(option: str, library: Path) -> str:
    """Return the output of readelf for a library."""
    return subprocess.run(["readelf", "-W", option, library], check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Build a stub for each missing library."""
    folder = next(Path(sys.argv[1]).glob("lib/python*/site-packages/torch/lib"))
    libraries = sorted(path for path in folder.glob("*.so*") if not path.is_symlink())
    present = {path.name for path in libraries}
    needed: set[str] = set()
    defined: set[str] = set()
    #: By symbol version, which for some libraries is part of a function's name.
    wanted: dict[str, set[str]] = defaultdict(set)
    versions: dict[str, set[str]] = defaultdict(set)
    for library in libraries:
        needed |= set(re.findall(r"\(NEEDED\).*\[(.+?)\]", read("--dynamic", library)))
        for line in read("--dyn-syms", library).splitlines():
            fields = line.split()
            if len(fields) < 8 or not fields[0].rstrip(":").isdigit():
                continue
            name, _, version = fields[7].partition("@")
            if fields[6] == "UND" and fields[4] == "GLOBAL":
                wanted[version.strip("@")].add(name)
            elif fields[6] != "UND":
                defined.add(name)
        soname = ""
        for line in read("--version-info", library).splitlines():
            if match := re.search(r"File: (\S+)", line):
                soname = match[1]
            elif soname and (match := re.search(r"Name: (\S+) .*Flags", line)):
                versions[soname].add(match[1])
    missing = sorted(name for name in needed - present if not SYSTEM.match(name))
    # Functions without a version may come from any library: the first stub defines all of them.
    loose = {name for name in wanted[""] if name not in defined and re.match(r"(cu|nv|nccl|NV|Nv)", name)}
    for place, name in enumerate(missing):
        nodes = {node: wanted[node] for node in versions[name]}
        build(folder / name, name, loose if place == 0 else set(), nodes)
    print(f"torch_stubs: built stubs of {len(missing)} CUDA libraries", file=sys.stderr)


def build(target: Path, soname: str, loose: set[str], nodes: dict[str, set[str]]) -> None:
    """Build one library with these functions."""
    names = sorted(loose.union(*nodes.values()))
    code = "".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in names)
    script = "".join(f"{node} {{ global: {'; '.join(sorted(group))}; }};\n" for node, group in nodes.items() if group)
    with tempfile.TemporaryDirectory() as scratch:
        (source := Path(scratch, "stub.c")).write_text(code)
        (map_file := Path(scratch, "stub.map")).write_text(script)
        options = [f"-Wl,--version-script={map_file}"] if script else []
        command = ["gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{soname}", *options, "-o", target, source]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()

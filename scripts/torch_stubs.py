"""Stands in for the CUDA libraries that torch's wheel is linked against: `torch_stubs.py ENVIRONMENT`.

Each library that is named but not there becomes one that has every function looked for in it, and every function says
that there is no device. So torch can be imported and used on a machine without a GPU, without 2.5 GB of libraries.
They go to torch's own folder of libraries, where it looks first.
"""

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

#: cudaErrorNoDevice. Functions must return: some are called as the libraries are loaded.
NO_DEVICE = 100
#: Of the C library and the compiler: there already.
SYSTEM = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|gomp.*|util|numa|z))\.so")


def read(option: str, library: Path) -> str:
    """What readelf says of a library."""
    return subprocess.run(["readelf", "-W", option, library], check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Makes the stand-ins."""
    folder = next(Path(sys.argv[1]).glob("lib/python*/site-packages/torch/lib"))
    libraries = sorted(path for path in folder.glob("*.so*") if not path.is_symlink())
    there = {path.name for path in libraries}
    needed: set[str] = set()
    defined: set[str] = set()
    #: By version, which for some libraries is part of a function's name.
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
            if found := re.search(r"File: (\S+)", line):
                soname = found[1]
            elif soname and (found := re.search(r"Name: (\S+) .*Flags", line)):
                versions[soname].add(found[1])
    absent = sorted(name for name in needed - there if not SYSTEM.match(name))
    # Functions without a version may come from any library: the first has them all.
    loose = {name for name in wanted[""] if name not in defined and re.match(r"(cu|nv|nccl|NV|Nv)", name)}
    for place, name in enumerate(absent):
        nodes = {node: wanted[node] for node in versions[name]}
        build(folder / name, name, loose if place == 0 else set(), nodes)
    print(f"torch_stubs: {len(absent)} libraries stand in for CUDA's", file=sys.stderr)


def build(target: Path, soname: str, loose: set[str], nodes: dict[str, set[str]]) -> None:
    """One library with these functions."""
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

#!/usr/bin/env python3
"""Print the table of ir/src/import/versions.rs: for every operator of the installed onnx package, the opset versions in which its
schema changed.

    python opset_versions.py > ir/src/import/versions.rs
"""
import onnx
import onnx.defs

DOMAINS = ["", "ai.onnx.ml"]


def main():
    versions = {}
    for s in onnx.defs.get_all_schemas_with_history():
        if s.domain in DOMAINS:
            versions.setdefault((s.domain, s.name), set()).add(s.since_version)
    newest = {d: onnx.defs.onnx_opset_version() for d in DOMAINS if d == ""}
    for domain, name in versions:
        newest[domain] = max([newest.get(domain, 0), *versions[domain, name]])
    print("//! Opset versions in which ONNX changed each operator. Written by `xtask/py/opset_versions.py` from onnx %s." % onnx.__version__)
    print()
    print("/// The newest version of each domain in [`CHANGED`].")
    print("pub(super) const NEWEST: &[(&str, i64)] = &[%s];" % ", ".join(f'("{d}", {newest[d]})' for d in DOMAINS))
    print()
    print("/// Domain, operator, and every version that brought a new schema of it; sorted.")
    print("#[rustfmt::skip]")
    print("pub(super) static CHANGED: &[(&str, &str, &[i64])] = &[")
    for (domain, name), vs in sorted(versions.items()):
        print(f'    ("{domain}", "{name}", &{sorted(vs)}),')
    print("];")


if __name__ == "__main__":
    main()

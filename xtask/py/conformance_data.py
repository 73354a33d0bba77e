#!/usr/bin/env python3
"""Write the ONNX backend suite of the installed onnx package as folders: OUT/<case>/model.onnx and test_data_set_<i>/*.pb.

    python conformance_data.py OUT_DIR

Prints one JSON line with the number of cases. Node cases come from the package's generators, the others from its data files.
"""
import json
import shutil
import sys
from pathlib import Path

import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases


def write(value, path, type_proto):
    if isinstance(value, (onnx.TensorProto, onnx.SequenceProto, onnx.OptionalProto)):
        path.write_bytes(value.SerializeToString())
    elif isinstance(value, list) or type_proto.HasField("sequence_type"):
        path.write_bytes(numpy_helper.from_list(value, "").SerializeToString())
    elif value is None or type_proto.HasField("optional_type"):
        path.write_bytes(numpy_helper.from_optional(value, "").SerializeToString())
    else:
        path.write_bytes(numpy_helper.from_array(value, "").SerializeToString())


def main():
    out = Path(sys.argv[1])
    n = 0
    for case in collect_testcases(None):
        if case.model is None:
            continue
        folder = out / case.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_bytes(case.model.SerializeToString())
        (folder / "tolerance.json").write_text(json.dumps({"rtol": case.rtol, "atol": case.atol}))
        for k, (ins, outs) in enumerate(case.data_sets):
            data = folder / f"test_data_set_{k}"
            data.mkdir(exist_ok=True)
            for j, v in enumerate(ins):
                write(v, data / f"input_{j}.pb", case.model.graph.input[j].type)
            for j, v in enumerate(outs):
                write(v, data / f"output_{j}.pb", case.model.graph.output[j].type)
        n += 1
    root = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for kind in ["simple", "pytorch-operator", "pytorch-converted"]:
        for folder in sorted((root / kind).glob("*")):
            if (folder / "model.onnx").exists():
                shutil.copytree(folder, out / folder.name, dirs_exist_ok=True)
                n += 1
    print(json.dumps({"cases": n, "onnx": onnx.__version__}))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Run onnxruntime on cases and write what it gives beside what is expected: CASE/test_data_set_1 with the inputs of test_data_set_0.

    python peer_outputs.py ROOT CASE…

Prints one JSON line per case as it ends: {"case", "outcome": "ran" or "refused", "reason"}.
"""
import json
import shutil
import sys
from pathlib import Path

import onnx
import onnxruntime as ort
from onnx import numpy_helper


def read(path):
    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.read_bytes())
    return tensor


# Types of 4 and 2 bits, which cannot be handed over as arrays.
PACKED = (21, 22, 23, 25, 26)


def value(tensor):
    if tensor.data_type in PACKED:
        raise ValueError("an input with elements of less than a byte")
    array = numpy_helper.to_array(tensor)
    if array.dtype.kind == "V" or tensor.data_type in (16, 17, 18, 19, 20, 24):
        # Types that numpy does not have: by their ONNX number.
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, tensor.data_type)
    return ort.OrtValue.ortvalue_from_numpy(array)


def run(case):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    # As the operators' text has it: rewriting quantised models has changed results.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(case / "model.onnx"), options, providers=["CPUExecutionProvider"])
    data = case / "test_data_set_0"
    tensors = [read(p) for p in sorted(data.glob("input_*.pb"), key=lambda p: int(p.stem.split("_")[1]))]
    expected = [read(p) for p in sorted(data.glob("output_*.pb"), key=lambda p: int(p.stem.split("_")[1]))]
    names = [t.name for t in expected]
    got = session.run_with_ort_values(names, {t.name: value(t) for t in tensors})
    outputs = []
    for want, v in zip(expected, got):
        if want.data_type in PACKED:
            raise ValueError("a result with elements of less than a byte")
        array = v.numpy()
        if v.element_type() != want.data_type:
            raise ValueError(f"{want.name} is of type {v.element_type()}, not {want.data_type}")
        t = onnx.TensorProto(name=want.name, data_type=want.data_type, dims=array.shape, raw_data=array.tobytes())
        outputs.append(t.SerializeToString())
    folder = case / "test_data_set_1"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for k in range(len(tensors)):
        shutil.copy(data / f"input_{k}.pb", folder / f"input_{k}.pb")
    for k, bytes_ in enumerate(outputs):
        (folder / f"output_{k}.pb").write_bytes(bytes_)


def main():
    root = Path(sys.argv[1])
    for name in sys.argv[2:]:
        try:
            run(root / name)
            line = {"case": name, "outcome": "ran", "reason": ""}
        except Exception as e:
            line = {"case": name, "outcome": "refused", "reason": str(e).splitlines()[0] if str(e) else type(e).__name__}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

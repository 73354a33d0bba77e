#!/usr/bin/env python3
"""Write models whose memory grows while they run, with data: OUT/growth.onnx (sizes only the device knows) and OUT/loop.onnx (a carried
value that doubles in each iteration), each with OUT/NAME/test_data_set_0..2: small, large, small.

    python growth.py OUT
"""
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

F = TensorProto.FLOAT
rng = np.random.default_rng(5)


def weight(name, *shape):
    w = (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
    return numpy_helper.from_array(w, name)


def ints(name, *v):
    return numpy_helper.from_array(np.array(v, np.int64), name)


def model(name, nodes, inputs, outputs, inits):
    graph = helper.make_graph(nodes, name, inputs, outputs, inits)
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(m)
    return m


def growth():
    n = helper.make_node
    nodes = [
        n("Slice", ["x", "zero", "one", "one"], ["column"], "column"),
        n("Greater", ["column", "limit"], ["keep"], "keep"),
        n("Squeeze", ["keep", "one"], ["flat"], "flat"),
        n("NonZero", ["flat"], ["at"], "at"),
        n("Squeeze", ["at", "zero"], ["index"], "index"),
        n("Gather", ["x", "index"], ["rows"], "rows"),
        n("MatMul", ["rows", "w0"], ["h"], "product0"),
        n("Relu", ["h"], ["r"], "relu"),
        n("MatMul", ["r", "w1"], ["y"], "product1"),
    ]
    inits = [ints("zero", 0), ints("one", 1), numpy_helper.from_array(np.float32(0.25), "limit"), weight("w0", 64, 256), weight("w1", 256, 64)]
    x = helper.make_tensor_value_info("x", F, ["n", 64])
    y = helper.make_tensor_value_info("y", F, ["k", 64])
    return model("growth", nodes, [x], [y], inits)


def loop():
    n = helper.make_node
    b = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            n("Identity", ["go"], ["again"], "again"),
            n("MatMul", ["v", "w"], ["p"], "product"),
            n("Tanh", ["p"], ["t"], "tanh"),
            n("Concat", ["v", "t"], ["next"], "double", axis=0),
        ],
        "body",
        [b("i", TensorProto.INT64, []), b("go", TensorProto.BOOL, []), b("v", F, [None, 64])],
        [b("again", TensorProto.BOOL, []), b("next", F, [None, 64])],
    )
    nodes = [n("Loop", ["trips", "", "x"], ["y"], "loop", body=body)]
    inits = [numpy_helper.from_array(np.array(7, np.int64), "trips"), weight("w", 64, 64)]
    return model("loop", nodes, [b("x", F, ["n", 64])], [b("y", F, ["k", 64])], inits)


def main():
    out = Path(sys.argv[1])
    for name, m in [("growth", growth()), ("loop", loop())]:
        out.mkdir(parents=True, exist_ok=True)
        onnx.save(m, out / f"{name}.onnx")
        session = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
        for i, rows in enumerate([3, 301, 5]):
            x = rng.standard_normal((rows, 64)).astype(np.float32)
            (y,) = session.run(None, {"x": x})
            folder = out / name / f"test_data_set_{i}"
            folder.mkdir(parents=True, exist_ok=True)
            for kind, key, t in [("input", "x", x), ("output", "y", y)]:
                (folder / f"{kind}_0.pb").write_bytes(numpy_helper.from_array(t, key).SerializeToString())


if __name__ == "__main__":
    main()

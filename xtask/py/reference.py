#!/usr/bin/env python3
"""Write test data for one model: inputs of several shapes and onnxruntime's outputs, as test_data_set_<i>/{input,output}_<j>.pb.

    python reference.py MODEL.onnx SPEC.json OUT_DIR COUNT SEED [small]

SPEC.json is the model's entry of the corpus list: `input` items with name, dtype, shape, dims and fill. Axes whose declared dim
is a number keep it; the others get sizes around the listed one: 1, primes, batch above 1. Shapes that onnxruntime refuses are
drawn again. With `small` the other axes are 1 or 8. Prints one JSON line: the shapes of each set, or the error.
"""
import json
import random
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

BATCH = [1, 2, 3, 5, 7]
PRIMES = [1, 2, 3, 5, 7, 11, 13, 17, 23, 31, 37, 53, 67, 97, 101, 127, 131, 149, 167, 191, 211]


def fill(rule, shape, dtype, rng):
    words = rule.split()
    if words[0] == "int":
        return rng.integers(int(words[1]), int(words[2]), shape).astype(dtype)
    if words[0] == "uniform":
        return rng.random(shape).astype(dtype)
    if words[0].startswith("normal"):
        scale = float(words[0].split("*")[1]) if "*" in words[0] else 1.0
        return (rng.standard_normal(shape) * scale).astype(dtype)
    if words[0] == "const":
        return np.full(shape, float(words[1])).astype(dtype)
    if words[0] == "list":
        return np.resize(np.array([float(w) for w in words[1:]]), shape).astype(dtype)
    return {"zeros": np.zeros, "ones": np.ones, "true": np.ones}[words[0]](shape).astype(dtype)


def draw(inputs, k, rnd, small):
    """Sizes of the symbolic axes of attempt k; equal names get equal sizes. Attempt 0 is the listed shape, or the least one."""
    sizes = {}
    shapes = []
    for i, x in enumerate(inputs):
        shape = []
        for axis, (dim, base) in enumerate(zip(x["dims"], x["shape"])):
            fixed = isinstance(dim, int) and dim > 0
            name = dim if isinstance(dim, str) and dim != "?" else f"{i}.{axis}"
            if name not in sizes:
                if small and not fixed:
                    sizes[name] = 1 if axis == 0 else 8
                elif fixed or k == 0:
                    sizes[name] = base
                elif axis == 0:
                    sizes[name] = rnd.choice(BATCH)
                else:
                    # Images shrink through a network: much smaller ones leave windows of later layers empty.
                    least = 0.7 if len(x["shape"]) == 4 else 0.0
                    near = [p for p in PRIMES if base * least <= p <= base * 2] or [base]
                    sizes[name] = rnd.choice(near + [base])
            shape.append(base if fixed else sizes[name])
        shapes.append(shape)
    return shapes


def main():
    model_path, spec_path, out, count, seed = sys.argv[1:6]
    small = sys.argv[6:] == ["small"]
    spec = json.loads(Path(spec_path).read_text())
    rnd, rng = random.Random(int(seed)), np.random.default_rng(int(seed))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model_path, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    inputs = spec["input"]
    static = all(isinstance(d, int) and d > 0 for x in inputs for d in x["dims"])
    sets, seen, k, error = [], set(), 0, ""
    want = 1 if static else int(count)
    while len(sets) < want and k < 40 * want:
        shapes = draw(inputs, k, rnd, small)
        k += 1
        if str(shapes) in seen and k < 20 * want:
            continue
        feed = {x["name"]: fill(x["fill"], s, np.dtype(x["dtype"]), rng) for x, s in zip(inputs, shapes)}
        try:
            results = session.run(names, feed)
        except Exception as e:  # a shape that the model does not take
            error = str(e)
            continue
        seen.add(str(shapes))
        folder = Path(out) / f"test_data_set_{len(sets)}"
        folder.mkdir(parents=True, exist_ok=True)
        for j, (name, v) in enumerate(feed.items()):
            (folder / f"input_{j}.pb").write_bytes(numpy_helper.from_array(v, name).SerializeToString())
        for j, (name, v) in enumerate(zip(names, results)):
            (folder / f"output_{j}.pb").write_bytes(numpy_helper.from_array(np.asarray(v), name).SerializeToString())
        sets.append(shapes)
    print(json.dumps({"sets": sets, "error": "" if sets else error, "onnxruntime": ort.__version__, "onnx": onnx.__version__}))


if __name__ == "__main__":
    main()

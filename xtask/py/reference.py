#!/usr/bin/env python3
"""Write test data for one model: inputs of several shapes and onnxruntime's outputs, as test_data_set_<i>/{input,output}_<j>.pb.

    python reference.py MODEL.onnx SPEC.json OUT_DIR COUNT SEED [small] [alone] [plain]

SPEC.json is the model's entry of its list: `input` items with name, dtype, shape, dims and fill. Axes whose declared dim
is a number keep it; the others get sizes around the listed one: 1, primes, batch above 1. A dim `a + b` has the sum of the sizes.
Shapes that onnxruntime refuses are drawn again. With `small` the other axes are 1 or 8; with `alone` onnxruntime, which does not run
the model, is left out, and the sets have no outputs; with `plain` it runs the model as the operators' text has it. Prints one JSON line:
the shapes of each set, or the error.
"""
import json
import random
import sys
from pathlib import Path

import ml_dtypes  # noqa: F401: makes numpy know bfloat16
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
    for i, x in enumerate(inputs):
        for axis, (dim, base) in enumerate(zip(x["dims"], x["shape"])):
            fixed = isinstance(dim, int) and dim > 0
            name = axis_name(i, axis, dim)
            if name not in sizes and " + " not in name:
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
    return resolve(inputs, sizes)


def axis_name(i, axis, dim):
    return dim if isinstance(dim, str) and dim != "?" else f"{i}.{axis}"


def resolve(inputs, sizes):
    """Shapes of the inputs at the sizes of their symbolic axes."""
    def size(i, axis, dim, base):
        if isinstance(dim, int) and dim > 0:
            return base
        parts = axis_name(i, axis, dim).split(" + ")
        return sum(int(p) if p.isdigit() else sizes[p] for p in parts)
    return [[size(i, axis, d, b) for axis, (d, b) in enumerate(zip(x["dims"], x["shape"]))] for i, x in enumerate(inputs)]


def without_rounding(path):
    """The model for onnxruntime: its path, or its bytes without leave to round what MatMulNBits multiplies to 8 bits."""
    model = onnx.load(path, load_external_data=False)
    brief = [a for n in model.graph.node if n.op_type == "MatMulNBits" for a in n.attribute if a.name == "accuracy_level" and a.i]
    if not brief:
        return path
    onnx.load_external_data_for_model(model, str(Path(path).parent))
    for a in brief:
        a.i = 0
    return model.SerializeToString()


def session(path, plain):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if plain:
        # Rewriting quantised models changes results: a value between two steps goes to the other one.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(without_rounding(path) if plain else path, options, providers=["CPUExecutionProvider"])


def write(folder, kind, named):
    for j, (name, v) in enumerate(named):
        (folder / f"{kind}_{j}.pb").write_bytes(numpy_helper.from_array(np.asarray(v), name).SerializeToString())


def main():
    model_path, spec_path, out, count, seed = sys.argv[1:6]
    small, alone, plain = (flag in sys.argv[6:] for flag in ["small", "alone", "plain"])
    spec = json.loads(Path(spec_path).read_text())
    rnd, rng = random.Random(int(seed)), np.random.default_rng(int(seed))
    peer = None if alone else session(model_path, plain)
    names = [] if alone else [o.name for o in peer.get_outputs()]
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
            results = [] if alone else peer.run(names, feed)
        except Exception as e:  # a shape that the model does not take
            error = str(e)
            continue
        seen.add(str(shapes))
        folder = Path(out) / f"test_data_set_{len(sets)}"
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, "input", feed.items())
        write(folder, "output", zip(names, results))
        sets.append(shapes)
    print(json.dumps({"sets": sets, "error": "" if sets else error, "onnxruntime": ort.__version__, "onnx": onnx.__version__}))


if __name__ == "__main__":
    main()

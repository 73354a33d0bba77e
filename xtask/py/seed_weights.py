#!/usr/bin/env python3
"""Give a model whose weights are ConstantOfShape nodes seeded, scaled random weights.

    python seed_weights.py IN.onnx OUT.onnx SEED

A weight of rank 2 or more is normal with variance 2 / fan-in; the operands of BatchNormalization are scale near 1, bias and mean
near 0, variance in [0.5, 1.5); other vectors are small. The shapes of ConstantOfShape are read from initializers.
"""
import sys

import numpy as np
import onnx
from onnx import numpy_helper


def main():
    source, target, seed = sys.argv[1:4]
    rng = np.random.default_rng(int(seed))
    model = onnx.load(source)
    graph = model.graph
    inits = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    role = {}
    for node in graph.node:
        if node.op_type == "BatchNormalization":
            for what, name in zip(["x", "scale", "bias", "mean", "var"], node.input):
                role[name] = what
    nodes = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape" or node.input[0] not in inits:
            nodes.append(node)
            continue
        shape = tuple(int(d) for d in inits[node.input[0]])
        name = node.output[0]
        if len(shape) >= 2:
            w = rng.standard_normal(shape) * np.sqrt(2.0 / np.prod(shape[1:]))
        elif role.get(name) == "var":
            w = 0.5 + rng.random(shape)
        elif role.get(name) == "scale":
            w = 1.0 + 0.1 * rng.standard_normal(shape)
        else:
            w = 0.05 * rng.standard_normal(shape)
        graph.initializer.append(numpy_helper.from_array(w.astype(np.float32), name))
    del graph.node[:]
    graph.node.extend(nodes)
    used = {i for n in graph.node for i in n.input}
    keep = [t for t in graph.initializer if t.name in used]
    del graph.initializer[:]
    graph.initializer.extend(keep)
    inputs = [i for i in graph.input if i.name in used and i.name not in inits]
    del graph.input[:]
    graph.input.extend(inputs)
    onnx.save(model, target)


if __name__ == "__main__":
    main()
